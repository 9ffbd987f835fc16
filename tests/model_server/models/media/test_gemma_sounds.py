"""Sounds as Gemma 3n and 4 take them; vectors and logits are in test_media_families.py."""

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
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.model_server.models.media.media_runs import recipe_of
from tests.model_server.models.refusals import refused_otherwise
from tests.model_server.models.test_families import assert_close

N, FOUR = "gemma3n", "gemma4_sounds"
CASES = (N, "gemma3n_future", FOUR, "gemma4_sounds_future")


def media_of(
    name: str, tower: dict[str, Any] | None = None, outer: dict[str, Any] | None = None, **own: Any
) -> MediaRecipe:
    config = media_config_of(name) | (outer or {})
    config["audio_config"] |= tower or {}
    return recipe_of(made(config, preprocessor_of(name) | own, IMAGES="false"))


def sounds_of(name: str) -> list[tuple[int, np.ndarray]]:
    """Those of a prompt, with their numbers among all media."""
    return [(n, each) for n, each in enumerate(images_of(name)) if each.ndim == 1]


@pytest.mark.parametrize("name", CASES)
def test_frames_and_their_number_are_the_reference_processors(name: str) -> None:
    recipe, golden = media_of(name), golden_media_of(name)
    for number, sound in sounds_of(name):
        found, wanted = recipe.prepare(sound), golden[f"pieces_{number}"]
        np.testing.assert_allclose(found.pieces, wanted, atol=2e-5)
        assert found.rows == len(golden[f"rows_{number}"])


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [(N, "\n\n<start_of_audio>", "<end_of_audio>\n\n"), (FOUR, "<|audio>", "<audio|>")],
)
def test_the_text_of_a_sound_has_the_tokens_around_it(name: str, begin: str, end: str) -> None:
    recipe = media_of(name)
    found = recipe.prepare(images_of(name)[0])
    soft = found.rows - (recipe.end is not None)
    assert found.text == begin + recipe.placeholder * soft + end


def test_of_gemma_4_the_vectors_of_a_sound_do_not_depend_on_what_pads_it() -> None:
    _, encoder, whole = load_media(FOUR)
    recipe = recipe_of(whole)
    for number, sound in enumerate(images_of(FOUR)):
        part = recipe.prepare(sound)
        rest = ((0, -len(part.pieces) % 4), (0, 0))
        inputs = (
            jnp.asarray(np.pad(part.pieces, rest)[None]),
            jnp.asarray(np.pad(part.places, rest)[None]),
        )
        found = encoder.each[0](*inputs, jnp.asarray([len(part.pieces)], jnp.int32))
        wanted = golden_media_of(FOUR)[f"rows_{number}"]
        assert_close(np.asarray(found)[0, : part.rows], wanted)


def test_of_gemma_4_a_sound_has_a_vector_for_four_frames_that_it_fills() -> None:
    recipe = media_of(FOUR)
    for samples in (161, 320, 321, 801, 960, 961, 15_999, 16_000, 480_000):
        found = recipe.prepare(np.zeros(samples, np.float32))
        frames = (samples - 161) // 160 + 1
        assert len(found.pieces) == frames <= recipe.pieces[-1]
        assert found.rows == (frames + 3) // 4 <= recipe.rows


@pytest.mark.parametrize(
    ("name", "samples", "text"),
    [
        (N, 31_233, "the sound is too long (2.0 s): this model takes at most 1.952 s of each"),
        (N, 512, "the sound is too short: this model takes at least 32.06 ms"),
        (FOUR, 480_001, "the sound is too long (30.0 s): this model takes at most 30 s of each"),
        (FOUR, 160, "the sound is too short: this model takes at least 10.06 ms"),
    ],
)
def test_sounds_that_the_reference_would_cut_or_not_hear_are_refused(
    name: str, samples: int, text: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        media_of(name).prepare(np.zeros(samples, np.float32))
    assert text in caught.value.text


def test_towers_and_spectrograms_of_other_kinds_are_refused_by_their_keys() -> None:
    towers: list[tuple[tuple[str, dict[str, Any], dict[str, Any]], str]] = [
        ((N, {"conf_num_attention_heads": 5}, {}), "hidden_size = 32 and 5 attention heads"),
        ((N, {"sscp_conv_kernel_size": [3, 3]}, {}), "sscp_conv_kernel_size"),
        ((N, {"sscp_conv_channel_size": [12]}, {}), "sscp_conv_channel_size"),
        ((N, {"conf_attention_logit_cap": 0}, {}), "conf_attention_logit_cap = 0.0"),
        ((N, {"rotary": True}, {}), "rotary"),
        ((N, {"vocab_size": 5}, {}), "the token 275 must be one of them"),
        ((FOUR, {"subsampling_conv_channels": [12, 6]}, {}), "20 bins"),
        ((FOUR, {"attention_invalid_logits_value": -1.0}, {}), "attention_invalid_logits_value"),
        ((FOUR, {"hidden_act": "tanhh"}, {}), "activation 'tanhh'"),
        ((N, {}, {"dither": 0.1}), "dither = 0.1"),
        ((N, {}, {"feature_size": 80}), "feature_size = 80"),
        ((N, {}, {"preemphasis": "much"}), "preemphasis = 'much'"),
        ((N, {}, {"fft_overdrive": 1}), "fft_overdrive = 1"),
        ((N, {}, {"per_bin_mean": [1.0]}), "per_bin_mean"),
        ((FOUR, {}, {"sampling_rate": 8000}), "sampling_rate = 8000"),
        ((FOUR, {}, {"feature_size": 0}), "feature_size = 0"),
        ((FOUR, {}, {"max_frequency": 0.0}), "frequencies that ascend"),
    ]
    told = refused_otherwise(
        lambda case: media_of(case[0], case[1], **case[2]), towers, CheckpointError
    )
    assert not told


def test_a_token_behind_a_sound_may_be_the_language_models() -> None:
    recipe = media_of(N, outer={"eoa_token_id": 264})
    assert recipe.end is None
    found = recipe.prepare(images_of(N)[0])
    assert found.rows == 12 == recipe.rows
    assert media_of(N).tokens == {270, 271}


def test_a_model_without_the_part_that_hears_is_one_of_text() -> None:
    for name in (N, FOUR):
        without = {"audio_config": None}
        config, given, blind = media_config_of(name), preprocessor_of(name), {"IMAGES": "false"}
        assert made(config | without, given, **blind).media == ()
        assert made(config, given, SOUNDS="false", **blind).media == ()
