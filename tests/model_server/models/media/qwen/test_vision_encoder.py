"""Images are cut into patches in the order in which they are merged; settings are read, bounded, or
refused in words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.text_part import text_config
from model_server.models.media.image_processor import Scales
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.media.qwen.vision_encoder import PatchGrid
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.serving.chats.placeholders import places_of, triples_of
from model_server.sharing.images.forms import MultiplesForm
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    first_of_each_type,
    golden_media_of,
    kinds_of,
    load_media,
    media_case_names,
    parts_of,
)
from tests.model_server.models.media.media_runs import positions_in, recipe_of
from tests.model_server.models.refusals import refused_otherwise
from tests.tools.golden.media.qwen import (
    later_preprocessor,
    preprocessor,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
)

GRID = PatchGrid(
    patch=1,
    merge=2,
    frames=2,
    scales=Scales(1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    most=64,
    token="<image>",
)


def pixels(height: int, width: int) -> np.ndarray:
    """u8[h, w, 3]: each pixel tells its row, its column and 7."""
    rows, columns = np.indices((height, width))
    return np.stack([rows, columns, np.full_like(rows, 7)], -1).astype(np.uint8)


def test_patches_of_one_vector_lie_next_to_each_other() -> None:
    made = GRID(pixels(4, 6))
    assert made.places[:8, :2].tolist() == [
        *([0, 0], [0, 1], [1, 0], [1, 1]),
        *([0, 2], [0, 3], [1, 2], [1, 3]),
    ]
    assert made.places[:, 2:].tolist() == [[4, 6]] * 24
    assert (made.grid, made.rows, made.text) == ((1, 2, 3), 6, "<image>" * 6)


def test_a_patch_has_each_colour_in_both_frames() -> None:
    made = GRID(pixels(2, 2))
    assert made.pieces[3].tolist() == [1, 1, 1, 1, 7, 7]
    assert GRID.numbers == 6


def test_windows_come_one_after_the_other_and_those_at_the_edges_are_smaller() -> None:
    """Windows of 2 x 2 vectors over 3 x 3 of them."""
    made = replace(GRID, window=2)(pixels(6, 6))
    vectors = made.places[::4, 2] // 4
    assert vectors.tolist() == [0, 1, 3, 4, 2, 5, 6, 7, 8]
    assert made.places[::4, 3].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert sorted(made.places[:, 2].tolist()) == list(range(36))


def test_an_image_of_more_patches_than_were_loaded_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="becomes 72 patches, .*loaded for 64"):
        GRID(pixels(2, 36))


CASES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name not in first_of_each_type()))
    for name in media_case_names()
    if name.startswith("qwen") and not name.endswith(("audio", "audio_whole", "short"))
]


def made(config: dict[str, Any], given: dict[str, Any] | None = None, **overrides: str) -> Recipe:
    outer = text_config(config)
    found = outer if given is None else {**outer, "preprocessor_config": given}
    recipe = make_recipe("auto", found, overrides)
    assert isinstance(recipe, Recipe)
    return recipe


def media_of(
    config: dict[str, Any], given: dict[str, Any] | None = None, **overrides: str
) -> MediaRecipe:
    return recipe_of(made(config, given, **overrides))


def form_of(recipe: MediaRecipe) -> MultiplesForm:
    assert isinstance(recipe.form, MultiplesForm)
    return recipe.form


@pytest.mark.parametrize("name", CASES)
def test_patches_and_positions_are_those_of_the_reference_implementation(name: str) -> None:
    media, golden = load_media(name)[2].media, golden_media_of(name)
    parts, kinds = parts_of(media, name), kinds_of(name)
    found = b"".join(part.pieces for part in parts if media[part.encoder].kind == "image")
    wanted = [golden[f"pieces_{number}"] for number, kind in enumerate(kinds) if kind != "audio"]
    patches = np.frombuffer(found, "<f4").reshape(-1, wanted[0].shape[1])
    np.testing.assert_allclose(patches, np.concatenate(wanted), atol=1e-5)
    prompt = golden["prompt"]
    tokens = [token for recipe in media for token in recipe.tokens]
    places = places_of(list(prompt), tokens, parts)
    triples, following = triples_of(len(prompt), places, parts)
    at = positions_in(media, prompt, parts)
    assert at is not None
    np.testing.assert_array_equal(triples.T, at)
    assert following == at.max() + 1


def test_older_and_newer_files_bound_the_pixels_of_an_image() -> None:
    older = form_of(media_of(qwen2_5_vl({}), preprocessor()))
    newer = form_of(media_of(qwen3_vl({}), later_preprocessor()))
    saved = later_preprocessor(size={"min_pixels": 256, "max_pixels": 1920}, do_resize=None)
    for form in (older, newer, form_of(media_of(qwen3_vl({}), saved))):
        assert (form.factor, form.least, form.most, form.resample) == (8, 256, 1920, 3)


def test_an_image_becomes_1280_tokens_at_most_unless_the_publish_says_more() -> None:
    large = later_preprocessor(size={"shortest_edge": 256, "longest_edge": 64 * 10000})
    usual, more = (
        media_of(qwen3_vl({}), large),
        media_of(qwen3_vl({}), large, IMAGE_PIXELS="640000"),
    )
    assert (usual.rows, form_of(usual).most) == (1280, 64 * 1280)
    assert (more.rows, form_of(more).most) == (10000, 640000)
    assert usual.pieces == (640, 1280, 2560, 5120)
    assert isinstance(usual.prepare, PatchGrid)
    assert usual.prepare.most == usual.pieces[-1]


def test_pixels_beyond_the_checkpoints_bounds_are_refused() -> None:
    for value in ("63", "64000000", '"many"'):
        with pytest.raises(InvalidRequest, match="IMAGE_PIXELS"):
            media_of(qwen3_vl({}), later_preprocessor(), IMAGE_PIXELS=value)


def test_a_model_that_sees_nothing_has_no_bound_of_pixels() -> None:
    config = qwen2_vl({}) | {"vision_config": None}
    assert made(config).media == ()
    assert made(qwen2_vl({}), IMAGES="false").media == ()
    with pytest.raises(InvalidRequest, match="IMAGE_PIXELS bounds images"):
        made(config, IMAGE_PIXELS="1000")


def test_a_file_that_prepares_images_otherwise_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"patch_size": 5}, "patch_size = 5; supported: vision_config's, 4"),
        ({"merge_size": 3}, "merge_size = 3; supported: vision_config's, 2"),
        ({"temporal_patch_size": 1}, "temporal_patch_size = 1"),
        ({"size": {"height": 9, "width": 9}}, "size = .*shortest_edge and longest_edge"),
        ({"size": {"shortest_edge": 99, "longest_edge": 9}}, "at most its longest_edge"),
        ({"size": {"shortest_edge": "small"}}, "min_pixels"),
        ({"size": {"shortest_edge": 64}}, "max_pixels"),
        ({"image_processor_type": "ViTImageProcessor"}, "the processors of Qwen2VL"),
        ({"do_center_crop": True}, "keys that are not supported: do_center_crop"),
    ]

    def make(given: dict[str, Any]) -> MediaRecipe:
        return media_of(qwen3_vl({}), later_preprocessor(**given))

    assert refused_otherwise(make, cases, CheckpointError) == {}


def test_a_tower_that_is_not_computed_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"out_hidden_size": 40}, "vectors of 40 numbers; those of the language model have 48"),
        ({"num_heads": 4}, "24 numbers of a patch in 4 heads"),
        ({"num_position_embeddings": 35}, "must form a square"),
        ({"deepstack_visual_indexes": [0, 3]}, "give a list of its 3 layers, from 0"),
        ({"deepstack_visual_indexes": [0, 1, 2, 2]}, "feeds 4 layers .*, which has 3"),
        ({"in_channels": 4}, "in_channels = 4"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters = .*rope_type axial"),
        ({"window": 3}, "window = 3"),
    ]

    def make(changes: dict[str, Any]) -> MediaRecipe:
        return media_of(qwen3_vl(changes), later_preprocessor())

    assert refused_otherwise(make, cases, CheckpointError) == {}


def test_windows_smaller_than_a_vector_are_refused() -> None:
    with pytest.raises(CheckpointError, match="window_size = 7, less than the 8 pixels"):
        media_of(qwen2_5_vl({"window_size": 7}), preprocessor())
