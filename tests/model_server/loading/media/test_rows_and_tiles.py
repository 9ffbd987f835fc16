"""Images whose tokens are apart, in an engine: rows of Mistral 3's, tiles of Llama 4's; LLaVA's."""

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
from tests.tools.golden.media import llama4, pixtral

ROWS = {pixtral.SOFT: "[IMG]", pixtral.BREAK: "[IMG_BREAK]", pixtral.END: "[IMG_END]"}
TILES = {
    llama4.START: "<|image_start|>",
    llama4.END: "<|image_end|>",
    llama4.IMAGE: "<|image|>",
    llama4.SOFT: "<|patch|>",
    llama4.BESIDE: "<|tile_x_separator|>",
    llama4.BELOW: "<|tile_y_separator|>",
}
CONTROL = {
    "mistral3": ROWS,
    "mistral3_ministral3": ROWS,
    "llava": {pixtral.SOFT: "<image>"},
    "llama4": TILES,
}


@pytest.mark.extended
@pytest.mark.parametrize("case", CONTROL)
def test_answers_about_images_are_those_of_the_whole_model(case: str, tmp_path: Path) -> None:
    """Two requests beside each other, in chunks shorter than the images."""
    decoder, encoder, whole = load_media(case)
    recipe = recipe_of(whole)
    images = [prepared_of(recipe, image) for image in images_of(case)]
    wanted = wanted_of(case, decoder, recipe, seen(encoder, recipe, images), images)
    config = ModelServerConfig(slots=2, page_size=16, prefix_cache="tenant", max_mixed_blocks=1)
    loader = make_loader(config)
    loaded = loaded_of(loader, folder_of(tmp_path, CONTROL[case], case))
    before = loader.compiles_while_serving()
    asked = request_of(case, recipe)
    for found in answered(loaded.runner, asked, asked):
        check(found, wanted)
    assert loader.compiles_while_serving() == before
    loaded.runner.close()
