"""Llama 4's tower."""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import GgufProjector

_ADAPTER = ("mm.model.mlp.1", "mm.model.mlp.2")


def _llama4(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    inner, out = (facts.rows(f"{name}.weight") for name in _ADAPTER)
    return {
        "hidden_size": sizes["hidden_size"],
        "image_size": sizes["image_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "patch_size": sizes["patch_size"],
        "pixel_shuffle_ratio": 1 / facts.whole("vision.projector.scale_factor", 2),
        "projector_input_dim": inner,
        "projector_output_dim": out,
        "vision_output_dim": out,
    }


LLAMA4 = GgufProjector(
    texts={"llama4_text": "llama4_text"},
    token="<|patch|>",
    tensors={
        "multi_modal_projector.linear_1": ("mm.model.fc",),
        "vision_model.layernorm_pre": ("v.pre_ln",),
        "vision_model.layernorm_post": ("v.post_ln",),
        "vision_model.patch_embedding.linear": ("v.patch_embd",),
        "vision_model.vision_adapter.mlp.fc1": (_ADAPTER[0],),
        "vision_model.vision_adapter.mlp.fc2": (_ADAPTER[1],),
    },
    whole={
        "vision_model.class_embedding": ("v.class_embd",),
        "vision_model.positional_embedding_vlm": ("v.position_embd.weight",),
    },
    layers="vision_model.model.layers",
    layer_tensors={
        "input_layernorm": ("ln1",),
        "post_attention_layernorm": ("attn_post_norm",),
        "self_attn.q_proj": ("attn_q",),
        "self_attn.k_proj": ("attn_k",),
        "self_attn.v_proj": ("attn_v",),
        "self_attn.o_proj": ("attn_out",),
        "mlp.fc1": ("ffn_up",),
        "mlp.fc2": ("ffn_down",),
    },
    encoder=_llama4,
)
