"""The encoders of Qwen-VL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import FRAMES, GgufProjector


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
    """Every n-th layer sees all patches; windows are as published, for there is no key."""
    period = facts.whole("vision.n_wa_pattern")
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "fullatt_block_indexes": list(range(period - 1, sizes["num_hidden_layers"], period)),
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


def _deep(vision: Config) -> dict[str, tuple[str, ...]]:
    return {
        f"visual.deepstack_merger_list.{index}.{name}": (f"v.deepstack.{layer}.{part}",)
        for index, layer in enumerate(vision["deepstack_visual_indexes"])
        for name, part in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
    }


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
