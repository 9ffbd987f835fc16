"""Every family with image input against the reference implementation (see tools/golden/media)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    load_media,
    media_case_names,
    prepared_of,
)
from tests.model_server.models.media.media_runs import logits_with_images, recipe_of, seen
from tests.model_server.models.test_families import assert_close

QUICK = ("gemma3", "qwen2_5_vl", "qwen2_audio")  # in `make test`; all cases are in `make test-all`
CASES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.extended)
    for name in media_case_names()
]


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_logits_with_images_equal_the_reference_implementations(name: str) -> None:
    golden = golden_media_of(name)
    decoder, encoder, whole = load_media(name)
    recipe = recipe_of(whole)
    images = [prepared_of(recipe, image) for image in images_of(name)]
    rows = seen(encoder, recipe, images)
    wanted = np.concatenate([golden[f"rows_{n}"] for n in range(len(images))])
    assert_close(rows, wanted)
    found = logits_with_images(decoder, recipe, golden["prompt"], rows, images)
    assert_close(found, golden["logits"])


@pytest.mark.parametrize("name", CASES)
def test_an_image_has_as_many_vectors_as_the_prompt_has_places(name: str) -> None:
    recipe = recipe_of(load_media(name)[2])
    images = [prepared_of(recipe, image) for image in images_of(name)]
    assert (
        sum(image.rows for image in images)
        == (golden_media_of(name)["prompt"] == recipe.token).sum()
    )
    for image in images:
        assert len(image.pieces) == len(image.places) <= recipe.pieces[-1]
        assert image.rows <= recipe.rows
        assert np.prod(image.grid) == image.rows
