"""Qwen's models with image input in an engine: prompts in chunks, answers token by token."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import make_loader
from tests.model_server.loading.media.image_folder import folder_of
from tests.model_server.loading.media.image_requests import (
    answered,
    check,
    request_of,
    wanted_of,
)
from tests.model_server.loading.media.test_models_with_images import loaded_of
from tests.model_server.models.media.media_cases import images_of, load_media, prepared_of
from tests.model_server.models.media.media_runs import recipe_of, seen
from tests.tools.golden.media.qwen import END, START, TOKEN

CONTROL = {START: "<|vision_start|>", END: "<|vision_end|>", TOKEN: "<|image_pad|>"}
CASES = ("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "qwen3_vl_moe")


@pytest.mark.extended
@pytest.mark.timeout(600)  # programs with delta networks take long to compile
@pytest.mark.parametrize("case", CASES)
def test_answers_about_images_are_those_of_the_whole_model(case: str, tmp_path: Path) -> None:
    """Two requests beside each other; no chunk is as long as the images in it."""
    decoder, encoder, whole = load_media(case)
    recipe = recipe_of(whole)
    images = [prepared_of(recipe, image) for image in images_of(case)]
    wanted = wanted_of(case, decoder, recipe, seen(encoder, recipe, images), images)
    config = ModelServerConfig(slots=2, page_size=16, prefix_cache="tenant", max_mixed_blocks=1)
    loader = make_loader(config)
    loaded = loaded_of(loader, folder_of(tmp_path, CONTROL, case))
    before = loader.compiles_while_serving()
    asked = request_of(case, recipe)
    for found in answered(loaded.runner, asked, asked):
        check(found, wanted)
    assert loader.compiles_while_serving() == before
    loaded.runner.close()
