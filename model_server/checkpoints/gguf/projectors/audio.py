"""Encoders of sounds: Whisper's, of Qwen2-Audio and Voxtral, and Granite Speech's."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import (
    HEARING,
    GgufProjector,
    Parts,
    filters,
    flat,
    with_ends,
)
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

# --- Whisper

_EPSILON = 1e-5  # of every such encoder


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

# --- Granite Speech: a conformer that sees blocks of frames, and a Q-Former behind it
#
# The converter folds the mean and variance of each batch norm into its scale and offset, which are
# read as those of one that changes nothing else.

_NORM_EPSILON = np.float32(1e-5)  # of batch norms
_FORMER = re.compile(r"a\.proj_blk\.(\d{1,4})\.")
_READING = "cross_attn_k.weight"  # of the Q-Former's layers that read frames
_FORMER_LAYER: Parts = {
    "attention.attention.query": ("self_attn_q",),
    "attention.attention.key": ("self_attn_k",),
    "attention.attention.value": ("self_attn_v",),
    "attention.output.dense": ("self_attn_out",),
    "attention.output.LayerNorm": ("self_attn_norm",),
    "crossattention.attention.query": ("cross_attn_q",),
    "crossattention.attention.key": ("cross_attn_k",),
    "crossattention.attention.value": ("cross_attn_v",),
    "crossattention.output.dense": ("cross_attn_out",),
    "crossattention.output.LayerNorm": ("cross_attn_norm",),
    "intermediate_query.dense": ("ffn_up",),
    "output_query.dense": ("ffn_down",),
    "output_query.LayerNorm": ("ffn_norm",),
}


def _granite(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    embed, joined = sizes["hidden_size"], facts.get_any("audio.feature_layer", [])
    count = len(joined) if isinstance(joined, list | np.ndarray) else 0
    return {
        "cat_hidden_layers": facts.listed("audio.feature_layer", count, []),
        "context_size": facts.whole("audio.chunk_size"),
        "conv_expansion_factor": facts.rows("a.blk.0.conv_pw1.weight") // (2 * embed),
        "conv_kernel_size": facts.whole("audio.conv_kernel_size"),
        "dim_head": facts.shape("a.blk.0.attn_rel_pos_emb", 2)[1],
        "feedforward_mult": sizes["intermediate_size"] // embed,
        "hidden_dim": embed,
        "input_dim": facts.whole("audio.num_mel_bins"),
        "max_pos_emb": facts.whole("audio.max_pos_emb"),
        "num_heads": sizes["num_attention_heads"],
        "num_layers": sizes["num_hidden_layers"],
        "output_dim": facts.rows("a.enc_ctc_out.weight"),
    }


def _granite_outer(facts: Facts, audio: dict[str, Any]) -> dict[str, Any]:
    logger.warning(
        "a GGUF file has no adapter for prompts with sounds: if the model was published with one "
        "(adapter_config.json), serve its Hugging Face folder, or sounds are answered wrongly"
    )
    return {
        "downsample_rate": facts.whole("audio.projector.downsample_rate"),
        "has_lora_adapter": False,
        "projector_config": _former(facts),
        "window_size": facts.whole("audio.projector.window_size"),
        FEATURES: {"feature_size": audio["input_dim"] // 2},
    }


def _former(facts: Facts) -> dict[str, Any]:
    """Return the Q-Former's sizes; its epsilon and activation are the published models'."""
    first, layers = "a.proj_blk.0", _former_layers(facts.tensors)
    reading = [at for at in layers if facts.has(f"a.proj_blk.{at}.{_READING}")]
    size, read = facts.shape(f"{first}.{_READING}", 2)
    return {
        "cross_attention_frequency": reading[1] if len(reading) > 1 else len(layers),
        "encoder_hidden_size": read,
        "hidden_size": size,
        "intermediate_size": facts.rows(f"{first}.ffn_up.weight"),
        "num_attention_heads": facts.whole("audio.projector.head_count"),
        "num_hidden_layers": len(layers),
    }


def _former_layers(names: Collection[str]) -> list[int]:
    return sorted({int(found[1]) for name in names if (found := _FORMER.match(name))})


def _former_tensors(encoder: Config, names: Collection[str]) -> Parts:
    stems = {
        f"multi_modal_projector.qformer.encoder.layer.{at}.{name}": (f"a.proj_blk.{at}.{part}",)
        for at in _former_layers(names)
        for name, (part,) in _FORMER_LAYER.items()
    }
    return with_ends(stems)


def _columns(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that convolutions of one frame became matrices."""
    return numbers[..., None]


def _no_mean(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    return np.zeros_like(numbers)


def _no_variance(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    return np.full_like(numbers, 1 - _NORM_EPSILON)


GRANITE_SPEECH = GgufProjector(
    side=HEARING,
    texts=dict.fromkeys(("granite", "granitemoehybrid"), "granite_speech"),
    around=True,
    token="<|audio|>",
    token_key="audio_token_id",
    tensors={
        "audio_tower.input_linear": ("a.input_projection",),
        "audio_tower.out": ("a.enc_ctc_out",),
        "audio_tower.out_mid": ("a.enc_ctc_out_mid",),
        "multi_modal_projector.linear": ("a.proj_linear",),
        "multi_modal_projector.qformer.layernorm": ("a.proj_norm",),
    },
    whole={"multi_modal_projector.query": ("a.proj_query",)},
    layers="audio_tower.layers",
    prefix="a.blk",
    layer_tensors={
        "attn.pre_norm": ("ln1",),
        "attn.to_q": ("attn_q",),
        "attn.to_kv": ("attn_k", "attn_v"),
        "attn.to_out": ("attn_out",),
        "conv.norm": ("norm_conv",),
        "conv.depth_conv.conv": ("conv_dw",),
        "conv.batch_norm": ("conv_norm_var",),
        "ff1.pre_norm": ("ffn_norm",),
        "ff1.up_proj": ("ffn_up",),
        "ff1.down_proj": ("ffn_down",),
        "ff2.pre_norm": ("ffn_norm_1",),
        "ff2.up_proj": ("ffn_up_1",),
        "ff2.down_proj": ("ffn_down_1",),
        "post_norm": ("ln2",),
    },
    layer_whole={
        **with_ends({"conv.up_conv": ("conv_pw1",), "conv.down_conv": ("conv_pw2",)}),
        "attn.rel_pos_emb.weight": ("attn_rel_pos_emb",),
        "conv.batch_norm.running_mean": ("conv_norm_var.weight",),
        "conv.batch_norm.running_var": ("conv_norm_var.weight",),
    },
    encoder=_granite,
    outer=_granite_outer,
    undone={
        "conv.up_conv.weight": _columns,
        "conv.down_conv.weight": _columns,
        "conv.depth_conv.conv": filters,
        "conv.batch_norm.running_mean": _no_mean,
        "conv.batch_norm.running_var": _no_variance,
    },
    more=_former_tensors,
    # llama.cpp reads the other name, which files of earlier converters have.
    spellings={".conv_norm.": ".conv_norm_var."},
)
