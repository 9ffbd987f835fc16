"""Whisper's encoder, of Qwen2-Audio and Voxtral."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import HEARING, GgufProjector
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

_EPSILON = 1e-5  # of every such encoder


def _flat(numbers: np.ndarray, sizes: Config) -> np.ndarray:
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
_FLAT = {name: _flat for name in _CONVOLUTIONS if name.endswith(".bias")}


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
