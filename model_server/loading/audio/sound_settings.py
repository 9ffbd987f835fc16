"""Reads preprocessor_config.json: the spectrogram must be the one that is computed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_server.checkpoints.files import read_json
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.sharing.audio.process import HOP, RATE
from sax.errors import CheckpointError

_FILE = "preprocessor_config.json"
_FFT = 400


def check_sound_settings(folder: Path | None, config: WhisperConfig) -> None:
    """Raise CheckpointError for a spectrogram of another kind."""
    if folder is None or not (folder / _FILE).exists():
        return
    said = read_json(folder / _FILE)
    wanted: dict[str, Any] = {
        "dither": 0.0,
        "do_normalize": False,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config.bins,
        "hop_length": HOP,
        "n_fft": _FFT,
        "sampling_rate": RATE,
    }
    for key, value in wanted.items():
        if said.get(key, value) != value:
            raise CheckpointError(
                f"{_FILE} has {key} = {said[key]!r}; Whisper models are served with {value!r}"
            )
