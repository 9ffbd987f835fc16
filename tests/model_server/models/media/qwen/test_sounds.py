"""Sounds as the Omni models take them; vectors and logits are in test_media_families.py."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.media.media_recipe import MediaRecipe
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    kinds_of,
    load_media,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.model_server.models.test_families import assert_close

SECOND, THIRD = "qwen2_5_omni", "qwen3_omni_moe"


def media_of(name: str, tower: dict[str, Any] | None = None, **own: Any) -> MediaRecipe:
    config = media_config_of(name)
    config["thinker_config"]["audio_config"] |= tower or {}
    (media,) = made(config, preprocessor_of(name) | own, IMAGES="false").media
    return media


def samples_of(seconds: float) -> np.ndarray:
    at = np.arange(int(seconds * 16_000)) / 16_000
    return (np.sin(900 * at) * np.sin(7 * at) * 0.3).astype(np.float32)


@pytest.mark.parametrize("name", [SECOND, THIRD])
def test_frames_and_their_number_are_the_reference_processors(name: str) -> None:
    recipe, golden = media_of(name), golden_media_of(name)
    for number, kind in enumerate(kinds_of(name)):
        if kind != "audio":
            continue
        found, wanted = recipe.prepare(images_of(name)[number]), golden[f"pieces_{number}"]
        frames = found.pieces[found.places[:, 0] > 0]
        np.testing.assert_allclose(frames, wanted, atol=2e-5)
        assert found.text == recipe.placeholder * found.rows
        assert found.rows == len(golden[f"rows_{number}"])


@pytest.mark.parametrize("name", [pytest.param(SECOND, marks=pytest.mark.nightly), THIRD])
def test_a_long_sound_has_the_vectors_of_the_whole_in_parts(name: str) -> None:
    """Of 30 s at most, where the reference encodes a longer sound at once."""
    encoders, recipe = load_media(name)[1], media_of(name, chunk_length=300)
    (encoder,) = (each for each in encoders.each if not hasattr(each, "merger"))
    parts = recipe.prepare(samples_of(30.4)).parts
    assert len(parts) == 2

    def encoded(pieces: np.ndarray, places: np.ndarray) -> np.ndarray:
        size = recipe.pieces[0]
        rest = ((0, -len(pieces) % size), (0, 0))
        given = jnp.asarray(np.pad(pieces, rest)[None]), jnp.asarray(np.pad(places, rest)[None])
        return np.asarray(encoder(*given, jnp.asarray([len(pieces)], jnp.int32)))[0]

    each = [encoded(part.pieces, part.places)[: part.rows] for part in parts]
    pieces, places = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("pieces", "places")
    )
    assert_close(np.concatenate(each), encoded(pieces, places)[: sum(map(len, each))])


def test_any_number_of_samples_has_as_many_vectors_as_the_reference_counts() -> None:
    for samples in [*range(481, 32_000, 1_279), 31_999, 32_000]:
        frames = -(-samples // 160)
        found = media_of(SECOND).prepare(np.zeros(samples, np.float32))
        assert found.rows == (((frames - 1) // 2 + 1) - 2) // 2 + 1
        whole, left = divmod(samples // 160, 100)
        found = media_of(THIRD).prepare(np.zeros(samples, np.float32))
        assert found.rows == whole * 13 + (((left - 1) // 2 + 1 - 1) // 2 + 1 - 1) // 2 + 1


@pytest.mark.parametrize(
    ("name", "samples", "text"),
    [
        (SECOND, 32_001, "at most 2 s of each"),
        (SECOND, 320, "too short"),
        (THIRD, 40 * 60 * 16_000 + 1, "at most 2400 s of each"),
        (THIRD, 399, "too short"),
    ],
)
def test_sounds_that_are_too_long_or_too_short_are_refused(
    name: str, samples: int, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        media_of(name).prepare(np.zeros(samples, np.float32))


def test_other_towers_and_spectrograms_are_refused_by_their_keys() -> None:
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
        (SECOND, {"n_window": 11}, {}, "n_window = 11"),
        (SECOND, {"output_dim": 40}, {}, "vectors of 40 numbers"),
        (SECOND, {"rotary": True}, {}, "rotary"),
        (SECOND, {"d_model": 15, "encoder_attention_heads": 3}, {}, "d_model = 15"),
        (SECOND, {}, {"hop_length": 80}, "hop_length"),
        (SECOND, {}, {"chunk_length": 0}, "chunk_length = 0"),
        (THIRD, {"n_window": 40}, {}, "n_window"),
        (THIRD, {"n_window_infer": 250}, {}, "n_window_infer = 250"),
        (THIRD, {}, {"feature_size": 80}, "feature_size"),
    )
    for name, tower, own, text in cases:
        with pytest.raises(CheckpointError, match=text):
            media_of(name, tower, **own)


def test_each_encoder_may_be_left_out() -> None:
    config, given = media_config_of(SECOND), preprocessor_of(SECOND)
    kinds = {
        (images, sounds): [
            each.kind for each in made(config, given, IMAGES=images, SOUNDS=sounds).media
        ]
        for images, sounds in (("null", "true"), ("true", "false"), ("false", "false"))
    }
    assert [*kinds.values()] == [["image", "audio"], ["image"], []]
