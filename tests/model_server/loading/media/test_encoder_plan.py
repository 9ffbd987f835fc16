"""Memory of an encoder as planned, against the compiler's own count."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.engine.media.encoder_program import EncoderProgram
from model_server.engine.step_program import everywhere
from model_server.loading.media.encoder_plan import (
    check_chunk,
    encoder_workspace,
    media_limits,
    told_images,
    without_images,
)
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import leaf_shapes
from sax.errors import InvalidRequest, MemoryPlanError
from sax.need import Need
from tests.model_server.models.media.media_cases import media_config_of


def recipe_of(dtype: str, **vision: int) -> Recipe:
    config = media_config_of("gemma3")
    config["vision_config"] |= vision
    made = make_recipe("auto", text_config(config), {"DTYPE": f'"{dtype}"', "MEDIA_ROWS": "64"})
    assert isinstance(made, Recipe)
    return made


@pytest.mark.parametrize(
    ("dtype", "pixels"),
    [
        ("float32", 140),
        pytest.param("bfloat16", 140, marks=pytest.mark.extended),
        pytest.param("float32", 350, marks=pytest.mark.extended),
        pytest.param("float32", 14, marks=pytest.mark.extended),
    ],
)
def test_no_batch_needs_more_than_is_planned(dtype: str, pixels: int) -> None:
    recipe = recipe_of(
        dtype,
        image_size=pixels,
        hidden_size=96,
        num_attention_heads=12,
        intermediate_size=200,
        num_hidden_layers=2,
    )
    layout, limits = own_device(), media_limits(recipe)
    encoder = recipe.media_blueprint(layout)
    assert limits is not None
    assert encoder is not None
    leaves = leaf_shapes(encoder, layout)
    program = EncoderProgram(encoder, leaves, limits, everywhere(leaves[0].sharding))
    for images, size in limits.batches:
        stats: Any = program.lower(images, size).compile().memory_analysis()
        held = 4 * images * size * (limits.piece + limits.columns) + 4 * limits.rows * limits.width
        used = stats.temp_size_in_bytes + held
        assert used <= encoder_workspace(limits, encoder)


def test_a_refusal_says_what_images_take_and_keeps_the_need() -> None:
    limits, need = media_limits(recipe_of("float32")), Need(memory=5, weights=3)
    with (
        pytest.raises(
            MemoryPlanError, match="too small. Of that.*from 64 to no less than 8"
        ) as told,
        without_images(limits, 1 << 20, 1 << 21),
    ):
        raise MemoryPlanError("too small", need=need)
    assert told.value.need is need
    with pytest.raises(MemoryPlanError, match="^too small$"), without_images(None, 0, 0):
        raise MemoryPlanError("too small")


def test_an_image_longer_than_a_step_is_refused() -> None:
    limits = media_limits(recipe_of("float32"))
    check_chunk(limits, 4)
    check_chunk(None, 0)
    with pytest.raises(InvalidRequest, match="up to 4 tokens.*at most 3: publish with IMAGES"):
        check_chunk(limits, 3)


def test_the_log_describes_what_sees() -> None:
    limits = media_limits(recipe_of("float32"))
    assert "images of up to 4 tokens" in told_images(limits, 1 << 20)
    assert told_images(None, 0) == ""
