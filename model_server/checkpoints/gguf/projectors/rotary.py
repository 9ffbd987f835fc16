"""Towers whose patches are rotated: Pixtral's, of Mistral 3 and Pixtral 12B, and Llama 4's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import GgufProjector, rotated

_MERGER = "mm.patch_merger.weight"


def _pixtral(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in sizes.items() if key != "layer_norm_eps"}
    return {
        **kept,
        "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"],
        "hidden_act": "silu" if facts.flag("use_silu", False) else "gelu",
        "model_type": "pixtral",
        "rope_theta": facts.number("rope.freq_base", 10000.0),
    }


def _mistral3_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    return {
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
        "multimodal_projector_bias": facts.has("mm.1.bias"),
        "vision_feature_layer": -1,
    }


def _llava_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    return {
        "multimodal_projector_bias": facts.has("mm.1.bias"),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


MISTRAL3 = GgufProjector(
    texts={"llama": "mistral", "mistral": "mistral", "ministral3": "ministral3"},
    fits=lambda facts: facts.has(_MERGER),
    token="[IMG]",
    tensors={
        "vision_tower.patch_conv": ("v.patch_embd",),
        "vision_tower.ln_pre": ("v.pre_ln",),
        "multi_modal_projector.norm": ("mm.input_norm",),
        "multi_modal_projector.patch_merger.merging_layer": ("mm.patch_merger",),
        "multi_modal_projector.linear_1": ("mm.1",),
        "multi_modal_projector.linear_2": ("mm.2",),
    },
    layers="vision_tower.transformer.layers",
    layer_tensors={
        "attention_norm": ("ln1",),
        "ffn_norm": ("ln2",),
        "attention.q_proj": ("attn_q",),
        "attention.k_proj": ("attn_k",),
        "attention.v_proj": ("attn_v",),
        "attention.o_proj": ("attn_out",),
        "feed_forward.gate_proj": ("ffn_gate",),
        "feed_forward.up_proj": ("ffn_up",),
        "feed_forward.down_proj": ("ffn_down",),
    },
    encoder=_pixtral,
    outer=_mistral3_outer,
    undone={"attention.q_proj": rotated, "attention.k_proj": rotated},
    ignored=("v.token_embd.img_break",),
)
PIXTRAL = replace(
    MISTRAL3,
    texts={"llama": "llava", "mistral": "llava"},
    around=True,
    fits=lambda facts: not facts.has(_MERGER),
    outer=_llava_outer,
)


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
