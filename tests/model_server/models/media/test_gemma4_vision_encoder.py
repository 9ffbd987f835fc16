"""Images and videos as Gemma 4 takes them; vectors and logits are in test_media_families.py."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_server.models.media.gemma4_vision_encoder import BUDGETS
from model_server.models.media.media_recipe import DecodedVideo, MediaRecipe, VideoRecipe
from model_server.sharing.images.forms import BudgetForm
from model_server.sharing.videos.process import RefusedVideo
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    MEDIA,
    golden_media_of,
    images_of,
    kinds_of,
    load_media,
    media_config_of,
    parts_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import (
    made,
    media_of,
    prepared_images,
    seen_otherwise,
)
from tests.model_server.models.media.media_runs import recipe_of
from tests.model_server.models.test_families import assert_close

CASE, MIXED = "gemma4_vision", "gemma4"
FACTOR = 6  # pixels of a side of a square


def test_patches_and_their_number_are_the_reference_processors() -> None:
    """Those of the reference lie row by row, ours square by square."""
    for number, found in enumerate(prepared_images(CASE)):
        wanted = golden_media_of(CASE)[f"pieces_{number}"]
        assert found.grid is not None
        width = found.grid[2] * 3
        rows, columns = found.places.T
        assert sorted(rows * width + columns) == [*range(len(wanted))]
        np.testing.assert_allclose(found.pieces, wanted[rows * width + columns], atol=1e-6)
        assert found.rows == len(golden_media_of(CASE)[f"rows_{number}"])


def test_an_image_stands_between_two_tokens() -> None:
    found = prepared_images(CASE)[0]
    assert found.text == f"<|image>{'<|image|>' * found.rows}<image|>"


def test_the_vectors_of_an_image_do_not_depend_on_what_pads_it() -> None:
    _, encoder, whole = load_media(CASE)
    for number, part in enumerate(parts_of(whole.media, CASE)):
        pieces = np.frombuffer(part.pieces, "<f4").reshape(part.count, -1)
        places = np.frombuffer(part.places, "<i4").reshape(part.count, -1)
        inputs = jnp.asarray(pieces[None]), jnp.asarray(places[None])
        found = encoder.each[0](*inputs, jnp.asarray([part.count], jnp.int32))
        assert_close(np.asarray(found)[0], golden_media_of(CASE)[f"rows_{number}"])


# Width and height, of transformers' get_aspect_ratio_preserving_size for 16 pixels a patch, 3
# patches a side and 280 tokens.
SIZES = [
    ((512, 512), (768, 768)),
    ((1920, 1080), (1056, 576)),
    ((1080, 1920), (576, 1056)),
    ((768, 768), (768, 768)),
    ((1, 1), (768, 768)),
    ((20000, 10), (13440, 48)),
    ((10, 20000), (48, 13440)),
    ((2800, 11), (12768, 48)),
]


def test_images_fill_a_budget_as_the_reference_says() -> None:
    form = BudgetForm(48, 280)
    for (width, height), size in SIZES:
        assert form.fit(width, height) == (size, (0, 0, *size), None), (width, height)


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(BUDGETS))
@example(40, 700, 70)
@example(399, 7001, 70)
def test_no_image_has_fewer_tokens_than_kernels_are_told(
    width: int, height: int, budget: int
) -> None:
    wide, high = BudgetForm(48, budget).fit(width, height).resized
    assert budget // 2 - 1 <= wide // 48 * (high // 48) <= budget


def test_image_pixels_choose_a_budget_that_the_reference_has() -> None:
    def rows(asked: int) -> int:
        config = media_config_of(CASE)
        config["vision_config"] |= {"position_embedding_size": 3 * 1120}
        config["sliding_window"] = config["text_config"]["sliding_window"] = 2000
        recipe = recipe_of(made(config, preprocessor_of(CASE), IMAGE_PIXELS=str(asked)))
        assert isinstance(recipe.form, BudgetForm)
        return recipe.form.most

    square = FACTOR**2
    assert [rows(square * each) for each in (70, 139, 140, 600, 1120)] == [70, 70, 140, 560, 1120]
    for asked in (square * 70 - 1, square * 1120 + 1):
        with pytest.raises(InvalidRequest, match=f"from {70 * square}, .* to {1120 * square}"):
            rows(asked)


def test_colours_are_shifted_only_where_a_file_says_so() -> None:
    pixels = np.full((FACTOR, FACTOR, 3), 255, np.uint8)
    assert media_of(CASE, do_normalize=False).prepare(pixels).pieces.max() == 1.0
    assert media_of(CASE, do_normalize=None).prepare(pixels).pieces.max() == 1.0
    np.testing.assert_allclose(media_of(CASE).prepare(pixels).pieces[0, :3], 1.0, atol=1e-6)
    shifted = media_of(CASE, image_mean=[0.5] * 3).prepare(pixels).pieces[0, :3]
    np.testing.assert_allclose(shifted, [0.5 / 0.9, 0.5, 0.5 / 0.8], atol=1e-6)


def test_towers_and_processors_of_other_kinds_are_refused_by_their_keys() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
        ({}, {"head_dim": 10}, {}, "4 heads of 10 numbers"),
        ({}, {"num_key_value_heads": 3}, {}, "3 of keys"),
        ({}, {"position_embedding_size": 209}, {}, "images of up to 70 tokens need 210"),
        ({}, {"hidden_activation": "tanhh"}, {}, "activation 'tanhh'"),
        ({}, {"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type"),
        ({}, {"windows": 3}, {}, "windows"),
        ({}, {}, {"max_soft_tokens": 71}, "70, 140, 280, 560, 1120"),
        ({}, {}, {"patch_size": 16}, "vision_config's"),
        ({}, {}, {"pooling_kernel_size": 2}, "vision_config's"),
        ({}, {}, {"image_processor_type": "Gemma3ImageProcessor"}, "processors of Gemma4"),
        ({}, {}, {"do_normalize": 1}, "do_normalize"),
        ({}, {}, {"do_pan_and_scan": True}, "do_pan_and_scan"),
        ({"video_preprocessor_config": {"fps": 2}}, {}, {}, "fps"),
        ({"video_preprocessor_config": {"num_frames": 20_000}}, {}, {}, "num_frames"),
        ({"video_preprocessor_config": {"video_processor_type": "Q"}}, {}, {}, "of Gemma4"),
    ]
    assert seen_otherwise(CASE, cases) == {}


def test_a_window_shorter_than_an_image_whose_tokens_see_each_other_is_refused() -> None:
    config = media_config_of(CASE)
    assert (media_of(CASE).bidirectional, media_of(CASE).least) == (True, 34)
    config["text_config"]["sliding_window"] = 69
    with pytest.raises(CheckpointError, match="sliding_window 69, shorter than the 70 tokens"):
        made(config, preprocessor_of(CASE))
    config["text_config"]["use_bidirectional_attention"] = None
    assert not recipe_of(made(config, preprocessor_of(CASE))).bidirectional


def mixed(**overrides: str) -> tuple[MediaRecipe, ...]:
    """The encoders of a folder with one file for all media."""
    given = json.loads((MEDIA / MIXED / "processor_config.json").read_text())
    config = media_config_of(MIXED) | {
        "feature_extractor": given["feature_extractor"],
        "video_preprocessor_config": given["video_processor"],
    }
    return made(config, given["image_processor"], **overrides).media


def test_images_and_sounds_are_left_out_each_by_itself() -> None:
    assert [each.kind for each in mixed()] == ["image", "audio"]
    assert [each.kind for each in mixed(IMAGES="false")] == ["audio"]
    assert [each.kind for each in mixed(SOUNDS="false")] == ["image"]


def video_recipe() -> VideoRecipe:
    recipe = mixed()[0].video
    assert recipe is not None
    return recipe


def test_frames_of_a_video_are_images_behind_their_times() -> None:
    at = kinds_of(MIXED).index("video")
    frames, recipe = images_of(MIXED)[at], video_recipe()
    indices = recipe.form.indices(len(frames), 3.0)
    assert indices == [0, 2]
    video = DecodedVideo(frames[indices], tuple(indices), 3.0, len(frames))
    parts = recipe.prepare(video._replace(indices=(0, 212))).parts
    soft = f"<|image>{'<|video|>' * 70}<image|>"
    assert [part.text for part in parts] == [f"00:00 {soft}", f" 01:10 {soft}"]
    found = np.concatenate([part.pieces for part in parts])
    wanted = golden_media_of(MIXED)[f"pieces_{at}"]
    orders = [part.places[:, 0] * 20 + part.places[:, 1] for part in parts]
    order = np.concatenate([280 * number + each for number, each in enumerate(orders)])
    np.testing.assert_allclose(found, wanted[order], atol=1e-6)


def test_as_many_frames_are_taken_as_a_file_says_evenly_over_the_video() -> None:
    form = video_recipe().form
    assert form.indices(100, 25.0) == [0, 50]
    assert form.indices(1, 25.0) == [0]  # transformers refuses a video with fewer
    assert form.all_indices(2) == [0, 1]
    assert form.fit(40, 28, 2).size == (40, 28)
    with pytest.raises(RefusedVideo, match="3 images as frames: this model takes from 1 to 2"):
        form.all_indices(3)
    with pytest.raises(RefusedVideo, match="no frames"):
        form.indices(0, 25.0)
