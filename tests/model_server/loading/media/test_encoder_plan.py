"""Memory of an encoder as planned, against the compiler's own count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.engine.encoder_program import EncoderProgram
from model_server.engine.media import BatchShape
from model_server.engine.step_program import everywhere
from model_server.loading.media.encoder_plan import (
    check_chunk,
    encoder_workspace,
    longest_prompt,
    media_limits,
    share_of_media,
    told_media,
)
from model_server.loading.placed_model import place_model
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import leaf_shapes
from sax.errors import InvalidRequest, MemoryPlanError
from sax.need import Need
from tests.model_server.models.media.media_cases import media_config_of

HEADS = {"num_attention_heads": 16}
# Sizes of vision_config as published: Gemma 3, Gemma 4 26B, Llama 4, LLaVA 1.5, Pixtral 12B,
# Mistral Small 3.1, Qwen2-VL, Qwen2.5-VL and Qwen3-VL, the towers of Gemma 4 and Qwen with fewer
# layers so that they compile sooner.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma3": HEADS
    | {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    | {"image_size": 896, "patch_size": 14},
    "gemma4_vision": HEADS
    | {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 8, "head_dim": 72}
    | {"num_key_value_heads": 16, "patch_size": 16, "position_embedding_size": 10240},
    "llama4": HEADS
    | {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34}
    | {"image_size": 336, "patch_size": 14, "projector_input_dim": 4096}
    | {"projector_output_dim": 4096, "vision_output_dim": 4096},
    "llava": HEADS
    | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    | {"image_size": 336, "patch_size": 14},
    "llava_pixtral": HEADS
    | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    | {"head_dim": 64, "image_size": 1024, "patch_size": 16},
    "mistral3": HEADS
    | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    | {"head_dim": 64, "image_size": 1540, "patch_size": 14},
    "qwen2_vl": {"embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "depth": 8}
    | {"patch_size": 14, "spatial_patch_size": 14},
    "qwen2_5_vl": {"hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "depth": 8}
    | {"patch_size": 14, "spatial_patch_size": 14, "window_size": 112},
    "qwen3_vl": {"hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "depth": 8}
    | {"patch_size": 16, "num_position_embeddings": 2304},
}
TOP = {"gemma3": {"mm_tokens_per_image": 256}}


def recipe_of(dtype: str, **vision: int) -> Recipe:
    config = media_config_of("gemma3")
    config["vision_config"] |= vision
    made = make_recipe("auto", text_config(config), {"DTYPE": f'"{dtype}"', "MEDIA_ROWS": "64"})
    assert isinstance(made, Recipe)
    return made


def check_plan(recipe: Recipe, batches: Iterable[BatchShape]) -> None:
    """Compare what is planned with what the compiler counts, for these batches."""
    layout, limits = own_device(), media_limits(recipe)
    encoder = recipe.media_blueprint(layout)
    assert limits is not None
    assert encoder is not None
    leaves = leaf_shapes(encoder, layout)
    program = EncoderProgram(encoder, leaves, limits, everywhere(leaves[0].sharding))
    planned = encoder_workspace(limits, encoder)
    for batch in batches:
        stats: Any = program.lower(batch).compile().memory_analysis()
        own = limits.encoders[batch.encoder]
        held = 4 * batch.images * batch.size * (own.piece + own.columns)
        held += 4 * limits.rows * limits.width
        assert stats.temp_size_in_bytes + held <= planned


@pytest.mark.parametrize(
    ("dtype", "pixels", "layers"),
    [
        ("float32", 140, 12),  # layers enough to show what is kept of each
        pytest.param("bfloat16", 140, 12, marks=pytest.mark.nightly),
        pytest.param("float32", 350, 2, marks=pytest.mark.nightly),
        pytest.param("float32", 14, 2, marks=pytest.mark.nightly),
    ],
)
def test_no_batch_needs_more_than_is_planned(dtype: str, pixels: int, layers: int) -> None:
    recipe = recipe_of(
        dtype,
        image_size=pixels,
        hidden_size=96,
        num_attention_heads=12,
        intermediate_size=200,
        num_hidden_layers=layers,
    )
    limits = media_limits(recipe)
    assert limits is not None
    check_plan(recipe, limits.batches)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_no_batch_of_a_published_tower_needs_more_than_is_planned(name: str, dtype: str) -> None:
    config = media_config_of(name)
    config["vision_config"] |= PUBLISHED[name]
    config |= TOP.get(name, {})
    if "gemma" in name:
        config["text_config"]["sliding_window"] = 1024
    recipe = make_recipe("auto", text_config(config), {"DTYPE": f'"{dtype}"'})
    assert isinstance(recipe, Recipe)
    limits = media_limits(recipe)
    assert limits is not None
    largest = max(limits.batches, key=lambda each: each.images * each.size)
    check_plan(recipe, {largest, limits.batches[-1]})


def test_a_refusal_says_what_images_take_and_keeps_the_need() -> None:
    recipe, need = recipe_of("float32"), Need(memory=5, weights=3)
    with (
        pytest.raises(
            MemoryPlanError, match="small. Of that.* are for images.*from 64 to no less than 8"
        ) as told,
        share_of_media(recipe, 1 << 20, 1 << 21),
    ):
        raise MemoryPlanError("too small", need=need)
    assert told.value.need is need
    for other, weights in ((replace(recipe, media=()), 1), (recipe, 0)):
        with pytest.raises(MemoryPlanError, match="^too small$"), share_of_media(other, weights, 0):
            raise MemoryPlanError("too small")


def test_an_image_longer_than_a_step_is_refused() -> None:
    limits = media_limits(recipe_of("float32"))
    check_chunk(limits, 4)
    check_chunk(None, 0)
    with pytest.raises(InvalidRequest, match="up to 4 tokens.*at most 3: publish with IMAGES"):
        check_chunk(limits, 3)


def test_blocks_on_cpus_hold_the_largest_image_whose_tokens_see_each_other() -> None:
    config = text_config(media_config_of("gemma4_vision"))
    sizes = {"position_embedding_size": 3 * 1120}
    config |= {"sliding_window": 2000, "vision_config": config["vision_config"] | sizes}
    found = dict[int, int]()
    for tokens in (70, 280, 560, 1120):
        recipe = make_recipe("auto", config, {"IMAGE_PIXELS": str(36 * tokens)})
        assert isinstance(recipe, Recipe)
        found[tokens] = place_model(recipe, None, own_device()).prefill_block
    assert found == {70: 32, 280: 64, 560: 128, 1120: 128}
    assert place_model(recipe_of("float32"), None, own_device()).prefill_block == 32


def test_steps_hold_prompts_whose_tokens_see_each_other_if_images_leave_them_room() -> None:
    config = text_config(media_config_of("paligemma"))
    found = dict[tuple[int, str], tuple[int, int]]()
    for side, images in ((16, "null"), (32, "null"), (32, "false"), (64, "false"), (64, "null")):
        sizes = {"image_size": 14 * side, "patch_size": 14}
        changed = config | {"vision_config": config["vision_config"] | sizes}
        recipe = make_recipe("auto", changed, {"IMAGES": images})
        assert isinstance(recipe, Recipe)
        block = place_model(recipe, None, own_device()).prefill_block
        if (side, images) == (64, "null"):
            with pytest.raises(InvalidRequest, match="4096 tokens.*most 2048: publish with IMAGES"):
                longest_prompt(recipe, media_limits(recipe), 8 * block)
            continue
        found[side, images] = block, longest_prompt(recipe, media_limits(recipe), 8 * block)
    small, large = (128, 1024), (256, 2048)
    assert found == {
        (16, "null"): small,
        (32, "null"): large,
        (32, "false"): small,
        (64, "false"): small,
    }


def test_the_log_describes_the_encoder() -> None:
    recipe = recipe_of("float32")
    assert "images of up to 4 tokens each" in told_media(recipe, 1 << 20)
    assert told_media(replace(recipe, media=()), 0) == ""
    (media,) = recipe.media
    audio = replace(recipe, media=(replace(media, kind="audio"),))
    assert "sounds of up to 4 tokens each" in told_media(audio, 1 << 20)
