"""Images for CLIP's tower, LLaVA's text models, and what of its files is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.model_server.models.media.media_cases import media_config_of
from tests.model_server.models.media.media_recipes import (
    made,
    media_of,
    patches_at,
    pixels_of,
    prepared_images,
    seen_otherwise,
)


@pytest.mark.parametrize("name", ["llava", "llava_layers"])
def test_pixels_are_those_of_the_reference_implementations_processor(name: str) -> None:
    for number, image in enumerate(prepared_images(name)):
        places = np.stack(np.divmod(image.places[:, 0] - 1, 4), axis=1)
        wanted = patches_at(pixels_of(name, number), places, 5)
        np.testing.assert_allclose(image.pieces, wanted, atol=1e-5)
        assert image.text == "<image>" * 16


def test_layers_above_those_that_are_projected_are_not_read() -> None:
    assert "vision_tower.encoder.layers.2." in media_of("llava").unused
    assert not any(".layers." in each for each in media_of("llava_layers").unused)


def test_sizes_that_published_files_leave_out_are_the_text_models_usual_ones() -> None:
    config = media_config_of("llava")
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    assert made(config | {"text_config": text}, None).embed == 4096


def test_what_would_be_seen_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
        ({"vision_feature_select_strategy": "full"}, {}, {}, "select_strategy = 'full'"),
        ({"vision_feature_layer": 4}, {}, {}, "layers from 1 to 3"),
        ({"vision_feature_layer": [-1, "2"]}, {}, {}, "layers from 1 to 3"),
        ({}, {"model_type": "siglip_vision_model"}, {}, "clip_vision_model and pixtral"),
        ({}, {"patch_size": 6}, {}, "both must divide"),
        ({}, {"window": 2}, {}, "window = 2"),
        ({"text_config": {"model_type": "opt"}}, {}, {}, "supported: llama, mistral, qwen2"),
        ({}, {}, {"crop_size": 30}, "image_size, 20"),
        ({}, {}, {"do_center_crop": False}, "do_center_crop = false"),
        ({}, {}, {"do_pad": True}, "do_pad = true"),
        ({}, {}, {"size": {"shortest_edge": 10}}, "at least the crop_size, 20"),
    ]
    assert seen_otherwise("llava", cases) == {}
