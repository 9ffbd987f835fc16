"""Qwen2.5-Omni: Qwen2.5-VL's towers of images and videos, beside an encoder of sounds.

The part that answers, which its config calls the thinker; the one that speaks is not served.
Source: Xu et al. 2025 (arXiv:2503.20215); names and config keys are those of Hugging Face's
`Qwen2_5OmniForConditionalGeneration` and `Qwen2_5OmniThinkerForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.checkpoints.media_part import AUDIO, FEATURES
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.qwen2 import WINDOWS
from model_server.models.families.qwen_vl.qwen2_5_vl import tower
from model_server.models.families.qwen_vl.qwen2_vl import recipe_of
from model_server.models.known_keys import DECODER, DECODER_OFF, Harmless, KnownKeys, ignored
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.heard_videos import Weaver, in_chunks, with_sounds
from model_server.models.media.qwen.sounds import omni2_sounds, with_files_apart
from model_server.models.media.qwen.tower import TowerShape, separate
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN2, TOKENS, Timing, evenly
from model_server.models.recipe import Family, Recipe

_IMAGE, _VIDEO, _SOUND = "<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>"
_MARKS = ("<|audio_bos|>", "<|audio_eos|>")
_TOKEN_IDS = {"image_token_id": 151655, "video_token_id": 151656, "audio_token_id": 151646}
PER_SECOND, _PER_CHUNK = "position_id_per_seconds", "seconds_per_chunk"
# Keys of both generations beside those of the text model.
OMNI = (*OUTER, AUDIO, FEATURES, "audio_token_id", PER_SECOND, _PER_CHUNK)
# Tokens that a prompt's template writes, sounds of videos, training, and the part that speaks.
OMNI_HARMLESS: Harmless = {
    **TOKENS,
    **ignored(
        *("assistant_token_id", "audio_end_token_id", "audio_start_token_id", "ignore_index"),
        *("enable_audio_output", "enable_talker", "im_end_token_id", "im_start_token_id"),
        *("init_std", "system_token_id", "tts_bos_token_id"),
        *("tts_eos_token_id", "tts_pad_token_id", "user_token_id"),
    ),
}
KEYS = KnownKeys(
    "qwen2_5_omni",
    (*DECODER, *WINDOWS, *OMNI),
    {**DECODER_OFF, **OMNI_HARMLESS},
)
_DEFAULTS = {
    **_TOKEN_IDS,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "sliding_window": 32768,
    PER_SECOND: 25,
    _PER_CHUNK: 2,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(_with_ids(config), KEYS, _DEFAULTS)
    recipe = recipe_of(keys, values, _tower, _KIND)
    sounds = omni2_sounds(keys, _SOUND, recipe.embed)
    (seen,) = recipe.media or (None,)
    return replace(recipe, media=encoders(with_sounds(seen, sounds, _weaver(keys)), sounds))


def _weaver(keys: ConfigKeys) -> Weaver:
    each = int(keys.whole(PER_SECOND) * keys.number(_PER_CHUNK))
    return Weaver(turns=in_chunks(max(1, each)), marks=_MARKS, twins=True)


def _with_ids(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the config with the usual names of the tokens of media."""
    if config is None:
        return None
    names = {key.replace("_id", "_index"): key for key in _TOKEN_IDS}
    return with_files_apart({names.get(key, key): value for key, value in config.items()})


def _tower(keys: ConfigKeys) -> TowerShape:
    return replace(tower(keys), sources=separate)


def _timing(keys: ConfigKeys) -> Timing:
    return evenly(keys.whole(PER_SECOND), 2.0)


_KIND = replace(QWEN2, timing=_timing, texts=(_IMAGE, _VIDEO))

FAMILY = Family(
    "qwen2_5_omni",
    ("qwen2_5_omni_text", "qwen2_5_omni", "qwen2_5_omni_thinker"),
    "Qwen2.5-Omni",
    configure,
    own_types_only=True,
)
