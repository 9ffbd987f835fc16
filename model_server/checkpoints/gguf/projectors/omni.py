"""Encoders of Qwen2.5-Omni, Qwen3-Omni and Dots 3: of pictures and of sounds, in one file."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.audio import QWEN2_AUDIO
from model_server.checkpoints.gguf.projectors.projector import (
    HEARING,
    GgufProjector,
    Parts,
    flat,
    with_ends,
)
from model_server.checkpoints.gguf.projectors.vision import QWEN2_5_VL, QWEN3_VL
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

_BOUNDS = {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28}  # of pictures, in pixels
_POSITIONS = "a.position_embd.weight"  # computed


def _bounded(given: dict[str, Any], encoder: Config) -> dict[str, Any]:
    """Bound pictures and videos as the published models do: there is no key."""
    return {"size": _BOUNDS, **given}


# --- Qwen2.5-Omni

_TEXTS2 = {"qwen2_5_vl_text": "qwen2_5_omni_text"}
_SECONDS = 300  # of a sound, in the published models


def _heard2(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Chunks are as published, for there is no key."""
    return {
        **QWEN2_AUDIO.encoder(facts, sizes),
        "n_window": 100,
        "output_dim": facts.whole("audio.projection_dim"),
    }


def _features2(facts: Facts, encoder: dict[str, Any]) -> dict[str, Any]:
    return {FEATURES: {"chunk_length": _SECONDS, "feature_size": encoder["num_mel_bins"]}}


QWEN2_5_OMNI_VISION = replace(
    QWEN2_5_VL,
    texts=_TEXTS2,
    token="<|IMAGE|>",
    layer_tensors={
        **{name: parts for name, parts in QWEN2_5_VL.layer_tensors.items() if name != "attn.qkv"},
        **{f"attn.{part}": (f"attn_{part}",) for part in "qkv"},
    },
    pictures=_bounded,
)
QWEN2_5_OMNI_AUDIO = replace(
    QWEN2_AUDIO,
    texts=_TEXTS2,
    around=False,
    token="<|AUDIO|>",
    token_key="audio_token_id",
    tensors={"audio_tower.ln_post": ("a.post_ln",), "audio_tower.proj": ("mm.a.fc",)},
    encoder=_heard2,
    outer=_features2,
    ignored=(_POSITIONS,),
)

# --- Qwen3-Omni, whose pictures are told from Qwen3-VL's by the sounds beside them

_TEXTS3 = {"qwen3_vl_moe_text": "qwen3_omni_moe_text"}
_HEARD3 = "qwen3a"
_MERGER = {"ln_q": "norm", "mlp.0": "fc1", "mlp.2": "fc2"}
_PLANES = tuple(f"audio_tower.conv2d{number}" for number in (1, 2, 3))


def _hears(facts: Facts) -> bool:
    return facts.get("audio.projector_type") == _HEARD3


def _seen3(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Take the levels whose tensors the file has, as llama.cpp does: some published files announce
    levels and have none.
    """
    vision = QWEN3_VL.encoder(facts, sizes)
    deep = vision["deepstack_visual_indexes"]
    if not deep or any(facts.has(f"v.deepstack.{layer}.norm.weight") for layer in deep):
        return vision
    logger.warning(
        "the encoder's file lacks what pictures give the first layers of the model, so it sees "
        "less than the model's folder does: use a file from a newer converter, or the folder"
    )
    return {**vision, "deepstack_visual_indexes": []}


def _deep(vision: Config, names: Collection[str]) -> Parts:
    stems = {
        f"visual.merger_list.{index}.{name}": (f"v.deepstack.{layer}.{part}",)
        for index, layer in enumerate(vision["deepstack_visual_indexes"])
        for name, part in _MERGER.items()
    }
    return with_ends(stems)


def _heard3(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Chunks and windows are as published, for there is no key."""
    convolution = facts.tensors.get("a.conv2d.1.weight")
    if convolution is None or len(convolution.shape) != 4:
        raise CheckpointError("it has no a.conv2d.1.weight, or one of other dimensions")
    return {
        **QWEN2_AUDIO.encoder(facts, sizes),
        "downsample_hidden_size": convolution.shape[0],
        "n_window": 50,
        "n_window_infer": 800,
        "output_dim": facts.whole("audio.projection_dim"),
    }


def _outer3(facts: Facts, encoder: dict[str, Any]) -> dict[str, Any]:
    return {
        FEATURES: {"feature_size": encoder["num_mel_bins"]},
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


QWEN3_OMNI_VISION = replace(
    QWEN3_VL,
    texts=_TEXTS3,
    fits=_hears,
    tensors={
        "visual.pos_embed": ("v.position_embd",),
        "visual.merger.ln_q": ("v.post_ln",),
        "visual.merger.mlp.0": ("mm.0",),
        "visual.merger.mlp.2": ("mm.2",),
    },
    encoder=_seen3,
    more=_deep,
    pictures=_bounded,
)
QWEN3_OMNI_AUDIO = replace(
    QWEN2_5_OMNI_AUDIO,
    texts=_TEXTS3,
    token="<|audio_pad|>",
    tensors={
        "audio_tower.conv_out": ("a.conv_out",),
        "audio_tower.ln_post": ("a.post_ln",),
        "audio_tower.proj1": ("mm.a.mlp.1",),
        "audio_tower.proj2": ("mm.a.mlp.2",),
    },
    whole={
        f"{name}.{end}": (f"a.conv2d.{number}.{end}",)
        for number, name in enumerate(_PLANES, 1)
        for end in ("weight", "bias")
    },
    encoder=_heard3,
    outer=_outer3,
    undone={f"{name}.bias": flat for name in _PLANES},
)

# --- Dots 3


def _seen_dots(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    layers, size = sizes["num_hidden_layers"], sizes["hidden_size"]
    facts.get("use_silu")
    counts = facts.listed("vision.expert_count_per_layer", layers)
    stacks = {at: facts.shape(f"v.blk.{at}.{_GATES}", 3) for at in range(layers) if counts[at]}
    if any(stack[0] != counts[at] for at, stack in stacks.items()):
        raise CheckpointError(f"its metadata says {counts} experts, and its tensors say others")
    inner = next((stack[1] for stack in stacks.values()), sizes["intermediate_size"])
    return {
        "adapter_out_dim": facts.whole("vision.projection_dim"),
        "capacity_factor": facts.whole("vision.expert_used_count"),
        "embed_dim": size,
        "intermediate_size": sizes["intermediate_size"],
        "moe_intermediate_size": inner,
        "num_heads": sizes["num_attention_heads"],
        "num_hidden_layers": layers,
        "patch_size": sizes["patch_size"],
        "pyramid_num_routed": counts,
        "rms_norm_eps": sizes["layer_norm_eps"],
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
    }


_GATES = "ffn_gate_exps.weight"
_EXPERT = {"fc1": _GATES, "fc2": "ffn_down_exps.weight", "fc3": "ffn_up_exps.weight"}


def _experts(vision: Config) -> dict[str, tuple[str, int]]:
    return {
        f"vision_tower.blocks.{layer}.mlp.experts.{at}.{name}.weight": (f"v.blk.{layer}.{part}", at)
        for layer, count in enumerate(vision["pyramid_num_routed"])
        for at in range(count)
        for name, part in _EXPERT.items()
    }


def _heard_dots(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    return {
        **{key: sizes[key] for key in kept},
        "adapter_input_size": sizes["hidden_size"],
        "adapter_out_dim": facts.whole("audio.projection_dim"),
        "downsample_hidden_size": facts.shape("a.conv2d.1.weight", 4)[0],
        "feature_size": facts.whole("audio.num_mel_bins"),
    }


_TEXTS_DOTS = {"dots3_note": "dots3_note"}
_HEARS, _ADAPTER = "audio_encoder.dots_encoder.speech_encoder", "audio_encoder.audio_adapter.proj"
DOTS3_VISION = GgufProjector(
    texts=_TEXTS_DOTS,
    token="<|imgpad|>",
    around_token={"video_token_id": "<|video_pad|>"},
    tensors={
        "vision_tower.patch_embed.proj": ("v.patch_embd",),
        "vision_tower.patch_embed.norm": ("v.pre_ln",),
        "vision_tower.post_trunk_norm": ("mm.post_norm",),
        "vision_tower.adapter.ln_q": ("mm.input_norm",),
        "vision_tower.adapter.mlp.0": ("mm.0",),
        "vision_tower.adapter.mlp.2": ("mm.2",),
    },
    layers="vision_tower.blocks",
    layer_tensors={
        "norm_1": ("ln1",),
        "norm_2": ("ln2",),
        "attn.qkv": ("attn_qkv",),
        "attn.proj": ("attn_out",),
        "attn.q_norm": ("attn_q_norm",),
        "attn.k_norm": ("attn_k_norm",),
        "mlp.fc1": ("ffn_gate",),
        "mlp.fc2": ("ffn_down",),
        "mlp.fc3": ("ffn_up",),
    },
    layer_whole={
        "mlp.gate_weight": ("ffn_gate_inp.weight",),
        "mlp.router_bias": ("exp_probs_b.weight",),
    },
    encoder=_seen_dots,
    stacked=_experts,
)
DOTS3_AUDIO = GgufProjector(
    side=HEARING,
    texts=_TEXTS_DOTS,
    token="<|audio_comp_pad|>",
    token_key="audio_token_id",
    tensors={
        **{f"{_HEARS}.conv2d{at}": (f"a.conv2d.{at}",) for at in (1, 2, 3)},
        f"{_HEARS}.conv_out": ("a.conv_out",),
        f"{_HEARS}.layer_norm": ("a.post_ln",),
        f"{_ADAPTER}.0": ("mm.a.norm_pre",),
        f"{_ADAPTER}.1": ("mm.a.mlp.1",),
        f"{_ADAPTER}.3": ("mm.a.mlp.3",),
    },
    layers=f"{_HEARS}.layers",
    prefix="a.blk",
    layer_tensors={**QWEN2_AUDIO.layer_tensors, "fc1": ("ffn_gate", "ffn_up")},
    encoder=_heard_dots,
    outer=lambda facts, audio: {FEATURES: {"feature_size": audio["feature_size"]}},
)
