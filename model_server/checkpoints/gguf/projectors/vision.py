"""Encoders of pictures: those of Pixtral, Llama 4, Qwen-VL and its kin, and Kimi K2.5."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import (
    FRAMES,
    GgufProjector,
    Parts,
    rotated,
    with_ends,
)

# --- Pixtral, of Mistral 3 and Pixtral 12B

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

# --- Llama 4

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

# --- Qwen-VL


def _qwen(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that all of Qwen's towers have."""
    facts.get("vision.image_size")  # of the pictures that llama.cpp tries out
    return {
        "depth": sizes["num_hidden_layers"],
        "num_heads": sizes["num_attention_heads"],
        "patch_size": sizes["patch_size"],
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def _qwen2(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        **_qwen(facts, sizes),
        "embed_dim": sizes["hidden_size"],
        "hidden_size": facts.whole("vision.projection_dim"),
        "mlp_ratio": sizes["intermediate_size"] / sizes["hidden_size"],
        "hidden_act": "quick_gelu",
    }


def _qwen2_5(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Every n-th layer sees all patches; windows and positions of videos are as published, for
    there is no key."""
    period = facts.whole("vision.n_wa_pattern")
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "fullatt_block_indexes": list(range(period - 1, sizes["num_hidden_layers"], period)),
        "tokens_per_second": 2,
        "window_size": 8 * sizes["patch_size"],
        "hidden_act": "silu",
    }


def _exaone4_5(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    facts.get("use_silu")
    heads = sizes["num_attention_heads"]
    return {
        **_qwen2_5(facts, sizes),
        "num_key_value_heads": facts.whole("vision.attention.head_count_kv", heads),
        "window_size": facts.whole("vision.window_size"),
    }


def _qwen3(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    layers = sizes["num_hidden_layers"]
    deep = facts.listed("vision.is_deepstack_layers", layers, [False] * layers)
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "num_position_embeddings": facts.rows("v.position_embd.weight"),
        "deepstack_visual_indexes": [at for at, is_deep in enumerate(deep) if is_deep],
        "hidden_act": "gelu_pytorch_tanh",
    }


def _deep(vision: Config, names: Collection[str]) -> Parts:
    stems = {
        f"visual.deepstack_merger_list.{index}.{name}": (f"v.deepstack.{layer}.{part}",)
        for index, layer in enumerate(vision.get("deepstack_visual_indexes", ()))
        for name, part in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
    }
    return with_ends(stems)


_LAYER = {
    "norm1": ("ln1",),
    "norm2": ("ln2",),
    "attn.proj": ("attn_out",),
    "attn.qkv": ("attn_q", "attn_k", "attn_v"),
}
_FRAMES = {
    "visual.patch_embed.proj.weight": FRAMES,
    "visual.patch_embed.proj.bias": ("v.patch_embd.bias",),
}
_QWEN2_TENSORS = {
    "visual.merger.ln_q": ("v.post_ln",),
    "visual.merger.mlp.0": ("mm.0",),
    "visual.merger.mlp.2": ("mm.2",),
}
_IMAGE_PAD = "<|image_pad|>"
_QWEN3_TEXTS = ("qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text")
_QWEN3_TEXTS += ("qwen4_exp_text",)

QWEN2_VL = GgufProjector(
    texts={"qwen2_5_vl_text": "qwen2_vl_text"},
    token=_IMAGE_PAD,
    tensors=_QWEN2_TENSORS,
    whole=_FRAMES,
    layers="visual.blocks",
    layer_tensors={**_LAYER, "mlp.fc1": ("ffn_up",), "mlp.fc2": ("ffn_down",)},
    encoder=_qwen2,
)
QWEN2_5_VL = GgufProjector(
    texts={"qwen2_5_vl_text": "qwen2_5_vl_text"},
    token=_IMAGE_PAD,
    tensors=_QWEN2_TENSORS,
    whole=_FRAMES,
    layers="visual.blocks",
    layer_tensors={
        **_LAYER,
        "mlp.gate_proj": ("ffn_gate",),
        "mlp.up_proj": ("ffn_up",),
        "mlp.down_proj": ("ffn_down",),
    },
    encoder=_qwen2_5,
)
EXAONE4_5 = replace(
    QWEN2_5_VL,
    texts={"exaone4": "exaone4_5_text"},
    layer_tensors={**QWEN2_5_VL.layer_tensors, "attn.qkv": ("attn_qkv",)},
    encoder=_exaone4_5,
)
QWEN3_VL = GgufProjector(
    texts={name: name for name in _QWEN3_TEXTS},
    token=_IMAGE_PAD,
    tensors={
        "visual.pos_embed": ("v.position_embd",),
        "visual.merger.norm": ("v.post_ln",),
        "visual.merger.linear_fc1": ("mm.0",),
        "visual.merger.linear_fc2": ("mm.2",),
    },
    whole=_FRAMES,
    layers="visual.blocks",
    layer_tensors={
        **_LAYER,
        "attn.qkv": ("attn_qkv",),
        "mlp.linear_fc1": ("ffn_up",),
        "mlp.linear_fc2": ("ffn_down",),
    },
    encoder=_qwen3,
    more=_deep,
)

# --- GLM-5.3 Flash, whose tower is Qwen2.5-VL's with normed heads


def _glm5_next(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    facts.get("use_silu")
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "projection_intermediate_size": facts.rows("mm.gate.weight"),
        "rms_norm_eps": sizes["layer_norm_eps"],
        "swiglu_limit": facts.number("vision.swiglu_clamp", 10.0),
        "hidden_act": "silu",
    }


def _in_tokens(given: dict[str, Any], vision: Config) -> dict[str, Any]:
    """Images are bounded by tokens, of which the file has the pixels."""
    edges = given.pop("size", {})
    pixels = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    names = {"shortest_edge": "min_image_tokens", "longest_edge": "max_image_tokens"}
    return given | {names[edge]: most // pixels for edge, most in edges.items()}


GLM5_NEXT = replace(
    EXAONE4_5,
    texts={"glm5_next_text": "glm5_next_text"},
    token="<|image|>",
    tensors={
        "visual.downsample": ("mm.patch_merger",),
        "visual.post_layernorm": ("v.post_ln",),
        "visual.merger.proj": ("mm.model.fc",),
        "visual.merger.post_projection_norm": ("mm.post_norm",),
        **{f"visual.merger.{part}_proj": (f"mm.{part}",) for part in ("gate", "up", "down")},
    },
    layer_tensors={
        **EXAONE4_5.layer_tensors,
        "attn.q_norm": ("attn_q_norm",),
        "attn.k_norm": ("attn_k_norm",),
    },
    encoder=_glm5_next,
    pictures=_in_tokens,
)
