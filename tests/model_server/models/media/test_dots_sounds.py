"""Sounds as Dots 3 takes them; vectors and logits are in test_media_families.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.models.media.media_recipe import MediaRecipe
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made

CASE = "dots3_note_sounds"


def media_of(tower: dict[str, Any] | None = None, **own: Any) -> MediaRecipe:
    config = media_config_of(CASE)
    config["audio_config"] |= tower or {}
    (media,) = made(config, preprocessor_of(CASE) | own, IMAGES="false").media
    return media


def test_frames_and_their_number_are_the_reference_processors() -> None:
    recipe, golden = media_of(), golden_media_of(CASE)
    for number, sound in enumerate(images_of(CASE)):
        parts = recipe.prepare(sound).parts
        wanted = golden[f"pieces_{number}"]
        assert [part.rows for part in parts] == [-(-n // 1280) for n in lengths(len(sound))]
        assert sum(part.rows for part in parts) == len(golden[f"rows_{number}"])
        for part, chunk in zip(parts, np.split(wanted, len(parts)), strict=True):
            there = int(part.places.sum())
            np.testing.assert_allclose(part.pieces[:there], chunk[:there], atol=2e-5)


def lengths(samples: int) -> list[int]:
    """Of chunks of a second."""
    whole, rest = divmod(samples, 16_000)
    return [16_000] * whole + [rest] * bool(rest)


def test_sounds_that_are_too_long_or_empty_are_refused() -> None:
    for samples, text in ((40 * 60 * 16_000 + 1, "at most 2400 s of each"), (0, "too short")):
        with pytest.raises(InvalidRequest, match=text):
            media_of().prepare(np.zeros(samples, np.float32))


def test_other_towers_and_spectrograms_are_refused_by_their_keys() -> None:
    yarn = {"rope_parameters": {"rope_type": "yarn"}}
    cases: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
        ({"whisper_adapter_out_dim": 40}, {}, "adapter_out_dim"),
        ({"whisper_adapter_in_dim": 40}, {}, "adapter_input_size"),
        ({"whisper_config": {"d_model": 12, "encoder_attention_heads": 2}}, {}, "hidden_size = 12"),
        (yarn, {}, "rope_parameters"),
        ({"hop_length": 80}, {}, "hop_length"),
        ({"windowed": True}, {}, "windowed"),
        ({}, {"chunk_length": 61}, "chunk_length = 61"),
        ({}, {"feature_size": 80}, "feature_size"),
        ({}, {"feature_extractor_type": "WhisperFeatureExtractor"}, "another extractor"),
    )
    for tower, own, text in cases:
        with pytest.raises(CheckpointError, match=text):
            media_of(tower, **own)
