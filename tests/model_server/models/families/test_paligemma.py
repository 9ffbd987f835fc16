"""PaliGemma's images and prompts, and what of its files is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.model_server.models.media.media_cases import media_config_of
from tests.model_server.models.media.media_recipes import (
    made,
    patches_at,
    pixels_of,
    prepared_images,
    seen_otherwise,
)

LAYERS = "num_hidden_layers"  # beside text_config in some files


def test_pixels_are_those_of_the_reference_implementations_processor() -> None:
    for number, image in enumerate(prepared_images("paligemma")):
        places = np.stack(np.divmod(image.places[:, 0], 4), axis=1)
        wanted = patches_at(pixels_of("paligemma", number), places, 6)
        np.testing.assert_allclose(image.pieces, wanted, atol=1e-5)
        assert image.text == "<image>" * 16


def test_a_prompt_is_no_longer_than_the_context_and_every_window() -> None:
    first, second = media_config_of("paligemma"), media_config_of("paligemma_gemma2")
    assert made(first, None).bidirectional_prompt == 8192
    assert made(second, None).bidirectional_prompt == 24
    assert made(second, None, MAX_CONTEXT="20").bidirectional_prompt == 20
    assert made(second, None, IMAGES="false").bidirectional_prompt == 24


def test_a_switch_that_says_nothing_about_a_prompt_is_read_over() -> None:
    config = media_config_of("paligemma")
    for value in (None, True, False):
        text = config["text_config"] | {"use_bidirectional_attention": value}
        assert made(config | {"text_config": text}, None).bidirectional_prompt == 8192


def test_sizes_that_a_file_leaves_out_are_those_of_the_parts_own_configs() -> None:
    for name, kind, embed in (
        ("paligemma", "gemma", 3072),
        ("paligemma_gemma2", "gemma2", 2304),
    ):
        config = media_config_of(name) | {"text_config": {"model_type": kind}}
        config["vision_config"] = {"model_type": "siglip_vision_model"}
        config = {key: value for key, value in config.items() if key not in ("hidden_size", LAYERS)}
        recipe = made(config, None)
        assert (recipe.embed, recipe.vocab, recipe.media_rows) == (embed, 256000, 4096)
        (media,) = recipe.media
        assert (media.rows, media.piece) == (14 * 14, 16 * 16 * 3)


def test_what_would_be_seen_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
        ({"text_config": {"model_type": "gemma3_text"}}, {}, {}, "supported: gemma, gemma2"),
        ({}, {"window": 2}, {}, "window"),
        ({}, {}, {"image_seq_length": 15}, "image_seq_length"),
        ({}, {}, {"size": {"height": 48, "width": 48}}, "image_size, 24"),
        ({}, {}, {"do_resize": False}, "do_resize = false"),
    ]
    assert seen_otherwise("paligemma", cases) == {}
