"""Which frames of videos Qwen's models take, and when they are; vectors and logits are in
test_media_families.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from model_server.models.media.media_recipe import DecodedVideo, VideoRecipe
from model_server.sharing.videos.process import MOST_PIXELS, RefusedVideo, VideoForm
from sax.errors import CheckpointError
from tests.model_server.models.media.media_cases import (
    MEDIA,
    golden_media_of,
    media_config_of,
    parts_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.tools.golden.media.qwen import LENGTHS, RATE, SIZES

SECOND, BETWEEN, THIRD = "qwen2_vl_video", "qwen2_5_vl_video", "qwen3_vl_video"
CASES = (SECOND, BETWEEN, THIRD)


def recipe_of(name: str, **own: Any) -> VideoRecipe:
    """The recipe of a case, with changes to its video_preprocessor_config.json."""
    given = msgspec.json.decode((MEDIA / name / "video_preprocessor_config.json").read_bytes())
    config = media_config_of(name) | {"video_preprocessor_config": given | own}
    return video_of(config, preprocessor_of(name))


def form_of(recipe: VideoRecipe) -> VideoForm:
    assert isinstance(recipe.form, VideoForm)
    return recipe.form


def video_of(config: dict[str, Any], preprocessor: dict[str, Any] | None) -> VideoRecipe:
    (media,) = made(config, preprocessor).media
    assert media.video is not None
    return media.video


@pytest.mark.parametrize("name", [SECOND, THIRD])
def test_frames_and_their_sizes_are_the_reference_processors(name: str) -> None:
    golden = golden_media_of(name)
    form = msgspec.structs.replace(form_of(recipe_of(name)), frame_most=MOST_PIXELS)
    for (total, rate), wanted in zip(LENGTHS, golden["chosen"], strict=True):
        assert form.indices(total, rate) == wanted[wanted >= 0].tolist(), (total, rate)
    for (frames, height, width), size in zip(SIZES, golden["sizes"].tolist(), strict=True):
        assert form.size(width, height, frames) == (size[1], size[0])


def test_frames_of_a_video_are_pieces_of_their_own_as_the_reference_cuts_them() -> None:
    for name in CASES:
        golden = golden_media_of(name)
        (media,) = made(media_config_of(name), preprocessor_of(name)).media
        parts = parts_of([replace(media, video=recipe_of(name))], name)
        wanted = [golden["pieces_0"], golden["pieces_1"]]
        found = np.frombuffer(b"".join(part.pieces for part in parts), "<f4")
        np.testing.assert_allclose(found, np.concatenate(wanted).reshape(-1), atol=1e-5)


def frames_of(recipe: VideoRecipe, frames: int, rate: float = RATE) -> list[int | None]:
    """Where the pairs of frames of a video lie in time."""
    indices = tuple(recipe.form.indices(frames, rate))
    pixels = np.zeros((len(indices), 16, 24, 3), np.uint8)
    return [
        each.frame for each in recipe.prepare(DecodedVideo(pixels, indices, rate, frames)).parts
    ]


def test_pairs_are_as_far_apart_as_a_model_counts() -> None:
    assert frames_of(recipe_of(SECOND), 9) == [None, 1, 2]
    # Two positions a second, and a pair of frames each second.
    assert frames_of(recipe_of(BETWEEN), 12) == [None, 2, 4, 6]
    # Four frames at least: of half a second, so a pair each quarter.
    assert frames_of(recipe_of(BETWEEN), 15, 30.0) == [None, 0]
    assert frames_of(recipe_of(THIRD), 9) == [None] * 3


def test_qwen3_writes_the_mean_time_of_each_pair_of_frames() -> None:
    recipe = recipe_of(THIRD)
    pixels = np.zeros((3, 16, 24, 3), np.uint8)
    parts = recipe.prepare(DecodedVideo(pixels, (0, 3, 8), 2.0, 9)).parts
    token = "<|video_pad|>" * 6
    assert [part.text for part in parts] == [
        f"<{time} seconds><|vision_start|>{token}<|vision_end|>" for time in ("0.8", "4.0")
    ]


def test_bounds_that_a_file_asks_for_hold_for_each_frame() -> None:
    """Of `cap_pixels_per_frame`: 100 frames of 900 pixels, of which the file allows fewer."""
    form = form_of(recipe_of(SECOND, cap_pixels_per_frame=True, max_video_tokens=300))
    assert form.size(48, 40, 4) == (48, 40)
    assert np.prod(form.size(48, 40, 100)) <= 345 < 48 * 40
    third = form_of(recipe_of(THIRD, cap_pixels_per_frame=True, max_video_tokens=8))
    assert np.prod(third.size(160, 160, 8)) <= 537
    assert np.prod(form_of(recipe_of(THIRD)).size(160, 160, 8)) > 537


def test_a_file_of_images_stands_in_for_one_of_videos() -> None:
    form = form_of(video_of(media_config_of(SECOND), preprocessor_of(SECOND)))
    assert (form.least, form.most, form.rate, form.most_frames) == (256, 1920, 2.0, 768)


def test_a_video_of_one_frame_or_of_stripes_is_refused() -> None:
    for name in CASES:
        form = form_of(recipe_of(name))
        with pytest.raises(RefusedVideo, match="has 1 frames, and this model takes 2 or more"):
            form.indices(1, 25.0)
        with pytest.raises(RefusedVideo, match="at most 200 times the other"):
            form.size(4020, 20, 4)


def test_other_files_are_refused_by_their_keys() -> None:
    wrong: dict[str, Any] = {
        "fps": 0,
        "patch_size": 5,
        "size": {"height": 3},
        "video_processor_type": "SmolVLMVideoProcessor",
        "num_frames": 8,
    }
    for key, value in wrong.items():
        with pytest.raises(CheckpointError, match=rf"video_preprocessor_config\.json .*{key}"):
            recipe_of(SECOND, **{key: value})
