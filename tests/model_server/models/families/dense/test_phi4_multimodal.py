"""Sounds and images as Phi-4-multimodal takes them; vectors are in test_media_families.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.text_part import text_config
from model_server.models.media.media_recipe import PreparedMedia
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.low_rank import AdapterRoom, OwnAdapter
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.refusals import refused_otherwise

CASE, ALONE = "phi4_multimodal", "phi4_multimodal_sounds"


def recipe_of(
    vision: dict[str, Any] | None = None,
    audio: dict[str, Any] | None = None,
    outer: dict[str, Any] | None = None,
    overrides: dict[str, str] | None = None,
    **own: Any,
) -> Recipe:
    config = media_config_of(CASE) | (outer or {})
    config["vision_config"] = config["vision_config"] | (vision or {})
    config["audio_config"] = config["audio_config"] | (audio or {})
    config = text_config(config) | {"preprocessor_config": preprocessor_of(CASE) | own}
    made = make_recipe("auto", config, overrides or {})
    assert isinstance(made, Recipe)
    return made


def heard(samples: int) -> PreparedMedia:
    return recipe_of().media[1].prepare(np.ones(samples, np.float32))


def test_frames_are_the_reference_processors_behind_as_many_that_are_none() -> None:
    found = recipe_of().media[1].prepare(images_of(ALONE)[0])
    wanted = golden_media_of(ALONE)["pieces_0"]
    np.testing.assert_allclose(found.pieces[8:], wanted, atol=1e-5)
    assert not found.pieces[:8].any()
    assert found.rows == len(golden_media_of(ALONE)["rows_0"])


def test_a_sound_beside_images_is_another_one() -> None:
    recipe = recipe_of().media[1]
    assert recipe.beside is not None
    alone, beside = (make(images_of(ALONE)[0]) for make in (recipe.prepare, recipe.beside))
    assert (alone.places[:, :2] == beside.places[:, :2]).all()
    assert (alone.places[:, 2] == 0).all()
    assert (beside.places[:, 2] == 1).all()


def test_a_long_sound_is_chunks_that_begin_with_the_frames_before() -> None:
    frames = 2 * 4000 + 9
    parts = heard(400 + 160 * (frames - 1)).parts
    assert [part.rows for part in parts] == [500, 500, 2]
    assert [part.places[0].tolist() for part in parts] == [[2, 4008, 0], [3, 4008, 0], [3, 17, 0]]
    assert {len(part.pieces) for part in parts} == {4008}, "the last one is filled up and seen"
    assert (parts[0].pieces[-8:] == parts[1].pieces[:8]).all()
    whole = heard(400 + 160 * 3999)
    assert (whole.rows, whole.places[0, 0], whole.after) == (500, 1, ())


def test_sounds_too_long_or_short_and_images_too_thin_are_refused() -> None:
    for samples, text in ((399, "at least 25 ms"), (30 * 60 * 16_000 + 1, "at most 30 minutes")):
        with pytest.raises(InvalidRequest) as caught:
            heard(samples)
        assert text in caught.value.text
    with pytest.raises(InvalidRequest, match="one side is too long"):
        recipe_of().media[0].prepare(np.zeros((9, 64, 3), np.uint8))


def test_images_fill_crops_and_patches_in_the_white_alone_are_left_out() -> None:
    recipe = recipe_of().media[0]
    for image in ((32, 43), (96, 64)):
        made = recipe.prepare(np.full((*image, 3), 9, np.uint8))
        high, wide = (-(-side // 32) for side in image)
        rows, columns = (-(-side // 16) for side in image)
        assert len(made.pieces) == 16 * (1 + high * wide)
        assert made.rows == rows * (columns + 1) + 1 + 2 * 3
        assert made.text == "<|image|>" * made.rows


def test_its_adapters_are_for_images_and_for_sounds_without_them() -> None:
    given = {"vision-lora": {"r": 3}, "speech-lora": {"r": 20}}
    both = recipe_of(outer={"own_adapters": given}).adapters
    assert both == AdapterRoom(
        2, 20, (OwnAdapter("image", "vision-lora"), OwnAdapter("audio", "speech-lora"))
    )
    deaf = recipe_of(outer={"own_adapters": given}, overrides={"SOUNDS": "false"})
    assert deaf.adapters == AdapterRoom(1, 3, (OwnAdapter("image", "vision-lora"),))
    assert [each.kind for each in deaf.media] == ["image"]


def test_what_is_not_computed_is_refused_by_its_key() -> None:
    otherwise = refused_otherwise(
        lambda changes: recipe_of(*changes[:2], **changes[2]),
        [
            (({"patch_size": 5}, {}, {}), "patch_size 5"),
            (({"crop_size": 64}, {}, {}), "crop_size"),
            (({"feature_layer": 4}, {}, {}), "feature_layer = 4"),
            (({}, {"chunk_size": 18}, {}), "chunk_size"),
            (({}, {"time_reduction": 4}, {}), "time_reduction"),
            (({}, {"ext_pw_out_channel": 8}, {}), "ext_pw_out_channel = 8"),
            (({}, {"num_attention_heads": 3}, {}), "divides"),
            (({}, {"rotary": True}, {}), "rotary"),
            (({}, {}, {"dynamic_hd": 37}), "dynamic_hd"),
            (({}, {}, {"patch_size": 14}), "patch_size"),
            (({}, {}, {"hop_length": 80}), "hop_length = 80"),
            (({}, {}, {"audio_downsample_rate": 2}), "audio_downsample_rate = 2"),
        ],
        CheckpointError,
    )
    assert not otherwise
