"""Images as Gemma 3n takes them; vectors and logits are in test_media_families.py."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from model_server.models.media.media_recipe import MediaRecipe
from sax.errors import CheckpointError
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    kinds_of,
    media_config_of,
    prepared_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_recipes import made
from tests.model_server.models.media.media_runs import recipe_of as recipe_with_one

CASE, WHOLE = "gemma3n", "gemma3n_vision"
SOFT, SIDE = 4, 2  # vectors of an image, and of a side of it


def _images(config: dict[str, Any], preprocessor: dict[str, Any] | None) -> MediaRecipe:
    return recipe_with_one(made(config, preprocessor, SOUNDS="false"))


def recipe_of(case: str, **vision: Any) -> MediaRecipe:
    config = media_config_of(case)
    config["vision_config"] |= vision
    return _images(config, preprocessor_of(case))


@pytest.mark.parametrize("case", [CASE, WHOLE])
def test_the_squares_of_an_image_are_the_reference_processors(case: str) -> None:
    """Those with colours as they are, and those that are shifted."""
    recipe = recipe_of(case)
    for number, (image, kind) in enumerate(zip(images_of(case), kinds_of(case), strict=True)):
        if kind != "image":
            continue
        found, wanted = prepared_of(recipe, image), golden_media_of(case)[f"pieces_{number}"]
        assert (found.rows, len(found.pieces)) == (SOFT + 1, SOFT)
        side = wanted.shape[1] // SIDE
        squares = wanted.reshape(3, SIDE, side, SIDE, side).transpose(1, 3, 2, 4, 0)
        np.testing.assert_allclose(found.pieces, squares.reshape(SOFT, -1), atol=1e-6)
        assert found.text == f"\n\n<start_of_image>{'<image_soft_token>' * SOFT}<end_of_image>\n\n"


def test_an_image_of_the_published_model_is_256_vectors_and_the_token_behind_them() -> None:
    config = media_config_of(CASE)
    config["vision_config"]["model_args"] = None
    config["vision_soft_tokens_per_image"] = 256
    recipe = _images(config, None)
    assert (recipe.rows, recipe.piece) == (257, 3 * 48**2)
    assert recipe.tokens == {267, 266}


def test_a_token_behind_an_image_that_is_the_texts_has_no_vector_here() -> None:
    config = media_config_of(CASE) | {"eoi_token_id": 264}
    recipe = _images(config, preprocessor_of(CASE))
    assert (recipe.rows, recipe.tokens) == (SOFT, {267})


WRONG = [
    ({"architecture": "resnet50"}, "architecture = 'resnet50'"),
    ({"model_args": {"depth": 3}}, "supported are block_args, .*, not depth"),
    ({"model_args": [1]}, "not no object"),
    ({"model_args": {"channel_multiplier": 2}}, "channel_multiplier = 2; .*at most 1"),
    ({"model_args": {"channel_multiplier": float("nan")}}, "channel_multiplier = nan"),
    ({"model_args": {"msfa_output_resolution": 3}}, "64 pixels a side have 4 places .* 3 vectors"),
    ({"model_args": {"msfa_output_resolution": 4}}, "vision_soft_tokens_per_image = 4.*4 x 4"),
    ({"model_args": {"block_args": [[{}]]}}, "at least two lists"),
    ({"vocab_offset": 260}, "boi_token_id = 263 and eoi_token_id = 266.*from 260 on"),
]
WRONG_BLOCKS = [
    ({"block_type": "mha"}, "block_type = 'mha'; supported: one of er, uir, mqa"),
    ({"se_ratio": 0.25}, "se_ratio = 0.25"),
    ({"stride": 1}, "2 in the first stage"),
    ({"out_chs": 0}, "out_chs = 0; supported: a whole number from 1"),
    ({"exp_kernel_size": 99}, "exp_kernel_size = 99"),
    ({"exp_ratio": -1}, "exp_ratio = -1"),
]


def test_towers_that_are_not_built_are_refused_in_words() -> None:
    for vision, words in WRONG:
        with pytest.raises(CheckpointError, match=words):
            recipe_of(CASE, **vision)
    args = media_config_of(CASE)["vision_config"]["model_args"]
    for changes, words in WRONG_BLOCKS:
        blocks = deepcopy(args)
        blocks["block_args"][0][0] |= changes
        with pytest.raises(CheckpointError, match=words):
            recipe_of(CASE, model_args=blocks)


def test_a_preprocessor_that_says_otherwise_is_refused() -> None:
    for changes, words in (
        ({"image_seq_length": 5}, "image_seq_length = 5"),
        ({"do_pad": True}, "do_pad = true"),
        ({"image_processor_type": "CLIPImageProcessor"}, "the processors of Siglip"),
        ({"crop_pct": 0.9}, "crop_pct"),
    ):
        with pytest.raises(CheckpointError, match=words):
            _images(media_config_of(CASE), preprocessor_of(CASE) | changes)
