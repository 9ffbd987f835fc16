"""Encoders of sounds: Whisper's, of Qwen2-Audio and Voxtral, and Gemma 4's."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import (
    HEARING,
    GgufProjector,
    bounded,
    undone_bounds,
)
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

# --- Whisper

_EPSILON = 1e-5  # of every such encoder


def flat(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that a bias became a column."""
    return numbers.reshape(-1)


def _common(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    if not np.isclose(sizes["layer_norm_eps"], _EPSILON, rtol=1e-5):
        raise CheckpointError(
            f"its norms have an epsilon of {sizes['layer_norm_eps']}; {_EPSILON} is supported"
        )
    return {
        "activation_function": "gelu",
        "max_source_positions": facts.rows("a.position_embd.weight"),
        "num_mel_bins": facts.whole("audio.num_mel_bins"),
    }


def _qwen2_audio(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        **_common(facts, sizes),
        "d_model": sizes["hidden_size"],
        "encoder_attention_heads": sizes["num_attention_heads"],
        "encoder_ffn_dim": sizes["intermediate_size"],
        "encoder_layers": sizes["num_hidden_layers"],
    }


def _voxtral(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    joined = facts.whole("audio.projector.stack_factor", 4)
    if sizes["intermediate_size"] != joined * sizes["hidden_size"]:
        raise CheckpointError(
            f"its projector takes {joined} vectors together, and feed-forwards of "
            f"{sizes['intermediate_size']} say otherwise for vectors of {sizes['hidden_size']}"
        )
    kept = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
    return {**_common(facts, sizes), **{key: sizes[key] for key in kept}}


_TENSORS = {
    "audio_tower.embed_positions": ("a.position_embd",),
    "audio_tower.layer_norm": ("a.post_ln",),
}
_LAYER = {
    "self_attn_layer_norm": ("ln1",),
    "final_layer_norm": ("ln2",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.out_proj": ("attn_out",),
    "fc1": ("ffn_up",),
    "fc2": ("ffn_down",),
}
_CONVOLUTIONS = {
    f"audio_tower.conv{number}.{end}": (f"a.conv1d.{number}.{end}",)
    for number in (1, 2)
    for end in ("weight", "bias")
}
_FLAT = {name: flat for name in _CONVOLUTIONS if name.endswith(".bias")}


def _bins(facts: Facts, audio: dict[str, Any]) -> dict[str, Any]:
    return {FEATURES: {"feature_size": audio["num_mel_bins"]}}


QWEN2_AUDIO = GgufProjector(
    side=HEARING,
    texts={"qwen2": "qwen2_audio"},
    around=True,
    token="<|AUDIO|>",
    token_key="audio_token_index",
    tensors={**_TENSORS, "multi_modal_projector.linear": ("mm.a.fc",)},
    whole=_CONVOLUTIONS,
    layers="audio_tower.layers",
    prefix="a.blk",
    layer_tensors=_LAYER,
    encoder=_qwen2_audio,
    outer=_bins,
    undone=_FLAT,
)
VOXTRAL = GgufProjector(
    side=HEARING,
    texts={"llama": "voxtral"},
    around=True,
    token="[AUDIO]",
    token_key="audio_token_id",
    tensors={
        **_TENSORS,
        "multi_modal_projector.linear_1": ("mm.a.mlp.1",),
        "multi_modal_projector.linear_2": ("mm.a.mlp.2",),
    },
    whole=_CONVOLUTIONS,
    layers="audio_tower.layers",
    prefix="a.blk",
    layer_tensors=_LAYER,
    encoder=_voxtral,
    outer=_bins,
    undone=_FLAT,
)

# --- Gemma 4

_HEARD = {
    **{f"self_attn.{part}": f"attn_{part[0]}" for part in ("q_proj", "k_proj", "v_proj")},
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
        **bounded(_HEARD),
    },
    encoder=_gemma4a,
    outer=lambda facts, audio: {FEATURES: {"feature_size": facts.whole("audio.num_mel_bins")}},
    undone={
        "lconv1d.depthwise_conv1d": _filters,
        "self_attn.per_dim_scale": _before_softplus,
        **undone_bounds(_HEARD),
    },
)
