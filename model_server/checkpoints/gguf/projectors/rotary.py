"""Towers whose patches are rotated: Pixtral's (of Mistral 3 and Pixtral 12B), Llama 4's, Kimi's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import GgufProjector, rotated
from sax.errors import CheckpointError

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


_POSITIONS = "v.position_embd.weight"


def _kimi(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Positions are a table by row and column; that of frames is computed."""
    facts.get("vision.image_size")  # of the table
    found = facts.tensors.get(_POSITIONS)
    if found is None or len(found.shape) != 3:
        raise CheckpointError(f"{_POSITIONS} is missing or has no rows and columns")
    merge = facts.whole("vision.projector.scale_factor", 2)
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    return {
        **{key: sizes[key] for key in (*kept, "patch_size")},
        "merge_kernel_size": [merge, merge],
        "pos_emb_height": found.shape[0],
        "pos_emb_width": found.shape[1],
        # As written in config.json: the file has the nearest float32
        "projection_layer_norm_eps": float(f"{sizes['layer_norm_eps']:.6g}"),
    }


def _padded(given: dict[str, Any], vision: Config) -> dict[str, Any]:
    """Images are bounded by patches, of which the file has the pixels."""
    size = given.pop("size", None)
    return given | (
        {} if size is None else {"max_patches": size["longest_edge"] // vision["patch_size"] ** 2}
    )


def _pairs_apart(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that rows' and columns' pairs of queries and keys are halves of a head in the file."""
    queries, keys, values = np.split(numbers, 3)
    heads, rest = sizes["num_attention_heads"], numbers.shape[1:]

    def apart(part: np.ndarray) -> np.ndarray:
        return part.reshape(heads, 2, -1, 2, *rest).swapaxes(1, 2).reshape(part.shape)

    return np.concatenate([apart(queries), apart(keys), values])


KIMI_K25 = GgufProjector(
    texts={"deepseek_v3": "deepseek_v3"},
    token="<|media_pad|>",
    tensors={
        "vision_tower.patch_embed.proj": ("v.patch_embd",),
        "vision_tower.encoder.final_layernorm": ("v.post_ln",),
        "mm_projector.pre_norm": ("mm.input_norm",),
        "mm_projector.proj.0": ("mm.1",),
        "mm_projector.proj.2": ("mm.2",),
    },
    whole={"vision_tower.patch_embed.pos_emb.weight": (_POSITIONS,)},
    layers="vision_tower.encoder.blocks",
    layer_tensors={
        "norm0": ("ln1",),
        "norm1": ("ln2",),
        "wqkv": ("attn_qkv",),
        "wo": ("attn_out",),
        "mlp.fc0": ("ffn_up",),
        "mlp.fc1": ("ffn_down",),
    },
    encoder=_kimi,
    pictures=_padded,
    undone={"wqkv": _pairs_apart},
)
