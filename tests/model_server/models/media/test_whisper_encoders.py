"""Sounds as Qwen2-Audio and Voxtral take them; vectors and logits are in test_media_families.py."""

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
    load_media,
    media_config_of,
    parts_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.model_server.models.media.media_runs import recipe_of, seen
from tests.model_server.models.test_families import assert_close

CASE, WHOLE = "qwen2_audio", "qwen2_audio_whole"


def media_of(name: str = CASE, tower: dict[str, Any] | None = None, **own: Any) -> MediaRecipe:
    config = media_config_of(name)
    config["audio_config"] |= tower or {}
    return recipe_of(made(config, preprocessor_of(name) | own))


@pytest.mark.parametrize("name", [CASE, WHOLE])
def test_frames_and_their_number_are_the_reference_processors(name: str) -> None:
    recipe, golden = media_of(name), golden_media_of(name)
    for number, sound in enumerate(images_of(name)):
        found, wanted = recipe.prepare(sound), golden[f"pieces_{number}"]
        assert found.places[:, 0].sum() == len(wanted)
        assert len(found.pieces) == min(len(wanted) + 2, recipe.pieces[-1])
        np.testing.assert_allclose(found.pieces[: len(wanted)], wanted, atol=2e-5)
        assert found.text == recipe.placeholder * found.rows
        assert found.rows == len(golden[f"rows_{number}"])


def test_a_sound_has_the_same_vectors_in_a_shorter_batch() -> None:
    _, encoder, whole = load_media(CASE)
    recipe, golden = recipe_of(whole), golden_media_of(CASE)
    for number in range(2):
        sound = recipe.prepare(images_of(CASE)[number])
        count, size = len(sound.pieces), -(-len(sound.pieces) // 4) * 4
        pieces = np.pad(sound.pieces, ((0, size - count), (0, 0)))[None]
        places = np.pad(sound.places, ((0, size - count), (0, 0)))[None]
        inputs = (jnp.asarray(pieces), jnp.asarray(places), jnp.asarray([count], jnp.int32))
        assert_close(
            np.asarray(encoder.each[0](*inputs))[0, : sound.rows], golden[f"rows_{number}"]
        )


def test_any_number_of_samples_has_as_many_vectors_as_the_reference_counts() -> None:
    recipe = media_of()
    for samples in [*range(321, 2_000, 79), 15_999, 16_000]:
        frames = -(-samples // 160)
        found = recipe.prepare(np.zeros(samples, np.float32))
        assert found.rows == (((frames - 1) // 2 + 1) - 2) // 2 + 1 <= len(found.pieces) // 4
        assert found.grid is None, "positions count as those of a text"


@pytest.mark.parametrize(
    ("samples", "text"),
    [(16_001, "the sound is too long (1.0 s): this model takes at most 1 s"), (320, "too short")],
)
def test_sounds_that_the_reference_would_cut_or_not_hear_are_refused(
    samples: int, text: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        media_of().prepare(np.zeros(samples, np.float32))
    assert text in caught.value.text


def test_a_whole_window_and_an_empty_one_are_heard_together() -> None:
    _, encoder, whole = load_media(WHOLE)
    sounds = parts_of(whole.media, WHOLE)
    assert_close(seen(encoder, whole.media, sounds[:1]), golden_media_of(WHOLE)["rows_0"])


def test_other_spectrograms_and_towers_are_refused_by_their_keys() -> None:
    own = {"hop_length": 80, "feature_size": 80, "chunk_length": 30, "sampling_rate": 8000}
    for key, value in own.items():
        with pytest.raises(CheckpointError, match=key):
            media_of(**{key: value})
    for tower, text in (({"encoder_attention_heads": 3}, "divides"), ({"rotary": True}, "rotary")):
        with pytest.raises(CheckpointError, match=text):
            media_of(tower=tower)


def test_a_model_without_the_part_that_hears_is_one_of_text() -> None:
    config = {key: value for key, value in media_config_of(CASE).items() if key != "audio_config"}
    assert made(config, None).media == ()
    assert made(media_config_of(CASE), None, SOUNDS="false").media == ()


def test_other_text_models_are_refused() -> None:
    config = media_config_of(CASE)
    config["text_config"] |= {"model_type": "llama"}
    with pytest.raises(CheckpointError) as caught:
        made(config, None)
    assert "'llama'; supported: qwen2" in caught.value.text


VOXTRAL = "voxtral"


def test_windows_of_a_sound_have_the_spectrogram_of_the_whole_as_the_reference() -> None:
    recipe, golden = media_of(VOXTRAL), golden_media_of(VOXTRAL)
    for number, sound in enumerate(images_of(VOXTRAL)):
        parts, rows = recipe.prepare(sound).parts, golden[f"rows_{number}"]
        found = np.concatenate([part.pieces for part in parts])
        np.testing.assert_allclose(found, golden[f"pieces_{number}"], atol=2e-5)
        assert sum(part.rows for part in parts) == len(rows)
        assert "".join(part.text for part in parts) == "[AUDIO]" * len(rows)


def test_of_voxtral_too_long_sounds_and_none_at_all_are_refused() -> None:
    cases = {0: "no samples", 40 * 60 * 16_000 + 1: "at most 40 minutes of each"}
    for samples, text in cases.items():
        with pytest.raises(InvalidRequest) as caught:
            media_of(VOXTRAL).prepare(np.zeros(samples, np.float32))
        assert text in caught.value.text


def test_voxtrals_that_are_no_such_models_are_refused_by_their_keys() -> None:
    towers: tuple[tuple[dict[str, Any], str], ...] = (
        ({"intermediate_size": 40}, "intermediate_size = 40: it must be a multiple of"),
        ({"max_source_positions": 50}, "chunk_length"),
        ({"d_model": 16}, "d_model"),
    )
    for tower, text in towers:
        with pytest.raises(CheckpointError, match=text):
            media_of(VOXTRAL, tower)
    config = media_config_of(VOXTRAL)
    config["text_config"] |= {"model_type": "qwen2"}
    with pytest.raises(CheckpointError, match="'qwen2'; supported: llama, mistral"):
        made(config, None)
