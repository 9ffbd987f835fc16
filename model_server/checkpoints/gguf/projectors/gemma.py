"""The encoders of Gemma 3, 3n and 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import (
    HEARING,
    GgufProjector,
    Parts,
    less_one,
)
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

_ATTENTION = ("q_proj", "k_proj", "v_proj")


def _gemma3_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    side = vision["image_size"] // vision["patch_size"]
    scale = facts.whole("vision.projector.scale_factor", 4)
    return {"mm_tokens_per_image": (side // scale) ** 2}


GEMMA3 = GgufProjector(
    texts={"gemma3_text": "gemma3_text"},
    token="<image_soft_token>",
    tensors={
        "vision_tower.embeddings.patch_embedding": ("v.patch_embd",),
        "vision_tower.embeddings.position_embedding": ("v.position_embd",),
        "vision_tower.post_layernorm": ("v.post_ln",),
        "multi_modal_projector.mm_soft_emb_norm": ("mm.soft_emb_norm",),
    },
    whole={
        "multi_modal_projector.mm_input_projection_weight": ("mm.input_projection.weight",),
    },
    layers="vision_tower.encoder.layers",
    layer_tensors={
        "layer_norm1": ("ln1",),
        "layer_norm2": ("ln2",),
        "self_attn.q_proj": ("attn_q",),
        "self_attn.k_proj": ("attn_k",),
        "self_attn.v_proj": ("attn_v",),
        "self_attn.out_proj": ("attn_out",),
        "mlp.fc1": ("ffn_up",),
        "mlp.fc2": ("ffn_down",),
    },
    encoder=lambda facts, sizes: sizes | {"hidden_act": "gelu_pytorch_tanh"},
    outer=_gemma3_outer,
    undone={"multi_modal_projector.mm_soft_emb_norm": less_one},
)

# --- Gemma 4, whose projections may have bounds

_ENDS = ("input_min", "input_max", "output_min", "output_max")
_CAUSAL = (1536, 2560)  # widths of the published text models whose pictures' tokens look back only


def _linear(names: dict[str, str]) -> Parts:
    return {f"{name}.linear.weight": (f"{part}.weight",) for name, part in names.items()}


def _bounds(names: dict[str, str]) -> Parts:
    return {f"{name}.{end}": (f"{part}.{end}",) for name, part in names.items() for end in _ENDS}


def _number(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that a number became a list."""
    return numbers.reshape(())


def _flat_patches(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Maps [D, colours, rows, columns] to [D, rows * columns * colours]."""
    return np.moveaxis(numbers, 1, 3).reshape(len(numbers), -1)


def _head_dim(facts: Facts, name: str) -> int:
    found = facts.tensors.get(name)
    if found is None or len(found.shape) != 1:
        raise CheckpointError(f"it has no {name}, or one that is not a vector")
    return found.shape[0]


def _gemma4v(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Squares of 3 x 3 patches and the base of positions are the published models': no key."""
    facts.get("vision.image_size")  # no size of any image
    table = facts.tensors.get("v.position_embd.weight")
    if table is None or len(table.shape) != 3:
        raise CheckpointError("it has no v.position_embd.weight of rows and columns")
    size = _head_dim(facts, "v.blk.0.attn_q_norm.weight")
    return {
        "head_dim": size,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "num_key_value_heads": facts.rows("v.blk.0.attn_k.weight") // size,
        "patch_size": sizes["patch_size"],
        "pooling_kernel_size": facts.whole("vision.projector.scale_factor", 3),
        "position_embedding_size": table.shape[1],
        "rms_norm_eps": sizes["layer_norm_eps"],
        "rope_theta": 100.0,
        "standardize": facts.has("v.std_bias"),
        "use_clipped_linears": facts.has("v.blk.0.attn_q.input_min"),
    }


def _gemma4_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    """Tell by the width whether the tokens of an image see each other, as llama.cpp does."""
    looks_back = facts.whole("vision.projection_dim") in _CAUSAL
    return {"use_bidirectional_attention": None if looks_back else "vision"}


_SEEN = {
    **{f"self_attn.{part}": f"attn_{part[0]}" for part in _ATTENTION},
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA4_VISION = GgufProjector(
    texts={"gemma4_text": "gemma4_text"},
    token="<|image|>",
    whole={
        "embed_vision.embedding_projection.weight": ("mm.input_projection.weight",),
        "vision_tower.patch_embedder.input_proj.weight": ("v.patch_embd.weight",),
        "vision_tower.patch_embedder.position_embedding_table": ("v.position_embd.weight",),
        "vision_tower.std_bias": ("v.std_bias",),
        "vision_tower.std_scale": ("v.std_scale",),
    },
    layers="vision_tower.encoder.layers",
    layer_tensors={
        "input_layernorm": ("ln1",),
        "post_attention_layernorm": ("attn_post_norm",),
        "pre_feedforward_layernorm": ("ln2",),
        "post_feedforward_layernorm": ("ffn_post_norm",),
        "self_attn.q_norm": ("attn_q_norm",),
        "self_attn.k_norm": ("attn_k_norm",),
    },
    layer_whole={**_linear(_SEEN), **_bounds(_SEEN)},
    encoder=_gemma4v,
    outer=_gemma4_outer,
    undone={
        "vision_tower.patch_embedder.input_proj.weight": _flat_patches,
        **dict.fromkeys(_bounds(_SEEN), _number),
    },
)

_HEARD = {
    **{f"self_attn.{part}": f"attn_{part[0]}" for part in _ATTENTION},
    "self_attn.post": "attn_out",
    "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down",
    "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
}


def _filters(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    return numbers[:, None]


def _before_softplus(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo log(1 + exp(x)), which the file holds."""
    given = np.maximum(numbers.astype(np.float64), np.finfo(np.float32).tiny)  # never 0 there
    return (given + np.log(-np.expm1(-given))).astype(np.float32)


def _gemma4a(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Windows, caps and factors are the published models': there are no keys."""
    channels = [_channels(facts, layer) for layer in range(2)]
    return {
        "hidden_size": sizes["hidden_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "output_proj_dims": facts.rows("a.pre_encode.out.weight"),
        "rms_norm_eps": sizes["layer_norm_eps"],
        "subsampling_conv_channels": channels,
        "use_clipped_linears": facts.has("a.blk.0.attn_q.input_min"),
    }


def _channels(facts: Facts, layer: int) -> int:
    found = facts.tensors.get(name := f"a.conv1d.{layer}.weight")
    if found is None or len(found.shape) != 4:
        raise CheckpointError(f"it has no {name}, or one of other dimensions")
    return found.shape[0]


GEMMA4_AUDIO = GgufProjector(
    side=HEARING,
    texts={"gemma4_text": "gemma4_text"},
    token="<|audio|>",
    token_key="audio_token_id",
    tensors={
        "audio_tower.output_proj": ("a.pre_encode.out",),
        "audio_tower.subsample_conv_projection.input_proj_linear": ("a.input_projection",),
        "audio_tower.subsample_conv_projection.layer0.conv": ("a.conv1d.0",),
        "audio_tower.subsample_conv_projection.layer0.norm": ("a.conv1d.0.norm",),
        "audio_tower.subsample_conv_projection.layer1.conv": ("a.conv1d.1",),
        "audio_tower.subsample_conv_projection.layer1.norm": ("a.conv1d.1.norm",),
        "embed_audio.embedding_projection": ("mm.a.input_projection",),
    },
    layers="audio_tower.layers",
    prefix="a.blk",
    layer_tensors={
        "feed_forward1.pre_layer_norm": ("ffn_norm",),
        "feed_forward1.post_layer_norm": ("ffn_post_norm",),
        "feed_forward2.pre_layer_norm": ("ffn_norm_1",),
        "feed_forward2.post_layer_norm": ("ffn_post_norm_1",),
        "lconv1d.pre_layer_norm": ("conv_norm",),
        "lconv1d.conv_norm": ("norm_conv",),
        "lconv1d.depthwise_conv1d": ("conv_dw",),
        "norm_pre_attn": ("attn_pre_norm",),
        "norm_post_attn": ("attn_post_norm",),
        "norm_out": ("ln2",),
        "self_attn.relative_k_proj": ("attn_k_rel",),
    },
    layer_whole={
        "self_attn.per_dim_scale": ("per_dim_scale.weight",),
        **_linear(_HEARD),
        **_bounds(_HEARD),
    },
    encoder=_gemma4a,
    outer=lambda facts, audio: {FEATURES: {"feature_size": facts.whole("audio.num_mel_bins")}},
    undone={
        "lconv1d.depthwise_conv1d": _filters,
        "self_attn.per_dim_scale": _before_softplus,
        **dict.fromkeys(_bounds(_HEARD), _number),
    },
)
