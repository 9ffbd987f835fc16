"""Qwen2-Audio's audio input: Whisper's encoder, averages of pairs, a norm and a projection.

Source: Chu et al. 2024 (arXiv:2407.10759); names and config keys are those of Hugging Face's
`Qwen2AudioForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.layers import Linear
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.qwen_audio.tower import AudioTower, AudioTowerConfig, layer_norm
from model_server.models.media.sizes import doubling
from model_server.models.weights.weight import WeightForm
from model_server.sharing.audio.frames import HOP, RATE
from model_server.sharing.audio.spectrogram import spectrogram
from sax.errors import CheckpointError, InvalidRequest

TOKEN = ("audio_token_id", "audio_token_index")
KEYS = (AUDIO, PREPROCESSOR, *TOKEN)
_SOUND_TOKEN = 151646
_SOFT, _TOWER, _PROJECTOR = "<|AUDIO|>", "audio_tower", "multi_modal_projector.linear"
_PER_ROW = 4  # frames: the second convolution takes every other one, and pairs are averaged
_BESIDE = 2  # frames behind a sound that its last vector is computed from
_LEAST = 500  # frames of the shortest compiled sound


class SoundEncoder(nnx.Module):
    """A MediaEncoder. A piece is a frame; its place is 1 if it is of the sound, and else 0."""

    def __init__(self, config: AudioTowerConfig, embed: int, form: WeightForm) -> None:
        self.tower = AudioTower(config, _TOWER, form)
        self.norm = layer_norm(config.embed, f"{_TOWER}.layer_norm")
        self.projection = Linear(
            embed,
            config.embed,
            ("embed", None),
            (f"{_PROJECTOR}.weight",),
            form=form,
            bias=(f"{_PROJECTOR}.bias",),
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard = self.tower(pieces, jnp.maximum(1, (places[:, :, 0].sum(1) + 1) // 2))
        sounds, count, size = heard.shape
        pairs = heard[:, : count // 2 * 2].reshape(-1, 2, size).mean(1)
        return self.projection(self.norm(pairs)).reshape(sounds, count // 2, -1)


def qwen2_audio_media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = keys.get(AUDIO)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    tower = AudioTowerConfig.from_hf(cast("Mapping[str, Any]", given))
    _check_processor(keys.get(PREPROCESSOR, {}), tower)
    token = next((key for key in TOKEN if keys.get(key) is not None), TOKEN[0])
    return MediaRecipe(
        kind="audio",
        build=lambda form: SoundEncoder(tower, embed, form),
        form=None,
        prepare=lambda samples: prepared(tower, samples),
        placeholder=_SOFT,
        token=keys.whole(token, _SOUND_TOKEN, least=0),
        piece=tower.bins,
        columns=1,
        per_row=_PER_ROW,
        width=embed,
        pieces=doubling(tower.frames, _PER_ROW, _LEAST),
        seconds=-(-tower.frames * HOP // RATE),
    )


def prepared(tower: AudioTowerConfig, samples: np.ndarray) -> PreparedMedia:
    """Return the frames of samples f32[n] at 16 kHz. Raises InvalidRequest for too many or few."""
    most, frames = tower.frames * HOP, -(-len(samples) // HOP)
    rows = (frames + 1) // _PER_ROW
    if len(samples) > most:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{most / RATE:g} s of each; send it in parts"
        )
    if not rows:
        raise InvalidRequest("the sound is too short: this model takes at least 30 ms")
    made = spectrogram(np.pad(samples, (0, most - len(samples))), tower.bins)
    pieces = made[: frames + _BESIDE]
    places = (np.arange(len(pieces)) < frames).astype(np.int32)[:, None]
    return PreparedMedia(pieces, places, (rows, 1, 1), rows, _SOFT * rows)


def _check_processor(given: Mapping[str, Any], tower: AudioTowerConfig) -> None:
    """Raise CheckpointError for a spectrogram of another kind."""
    wanted: dict[str, Any] = {
        "chunk_length": tower.frames * HOP // RATE,
        "dither": 0.0,
        "do_normalize": False,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": tower.bins,
        "hop_length": HOP,
        "n_fft": 400,
        "sampling_rate": RATE,
    }
    for key, value in wanted.items():
        if given.get(key, value) != value:
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {given[key]!r}; models with audio input "
                f"are served with {value!r}"
            )
