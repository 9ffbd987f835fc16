"""Every family with image input against the reference implementation (see tools/golden/media)."""

from __future__ import annotations

import numpy as np
import pytest

from model_server.kernels.cpu import native
from tests.model_server.models.media.media_cases import (
    first_of_each_type,
    golden_media_of,
    images_of,
    load_media,
    media_case_names,
    parts_of,
    prompt_of,
)
from tests.model_server.models.media.media_runs import logits_with_images, places_in, seen
from tests.model_server.models.test_families import assert_close

CASES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name not in first_of_each_type()))
    for name in media_case_names()
]
# Windows, learned positions, and sounds by day; the other towers are made of the same layers.
_BY_DAY = ("qwen2_5_vl", "gemma3", "qwen2_audio")
EXACT = [
    *_BY_DAY,
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma4", "llava", "mistral3")),
]


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_logits_with_images_equal_the_reference_implementations(name: str) -> None:
    golden = golden_media_of(name)
    decoder, encoder, whole = load_media(name)
    media = whole.media
    images = parts_of(media, name)
    for image in images:
        recipe = media[image.encoder]
        assert image.count <= recipe.pieces[-1]
        assert image.grid is None or np.prod(image.grid) == image.rows
        assert image.rows <= recipe.rows
    assert sum(image.rows for image in images) == places_in(media, golden["prompt"]).sum()
    rows = seen(encoder, media, images)
    wanted = np.concatenate([golden[f"rows_{n}"] for n in range(len(images_of(name)))])
    assert_close(rows, wanted)
    prompt, asked = prompt_of(name)
    assert bool(asked) == (whole.bidirectional_prompt is not None)
    found = logits_with_images(decoder, media, prompt, rows, images, asked)
    assert_close(found, golden["logits"])


@pytest.mark.skipif(not native.available(), reason="XLA's sums depend on the batch")
@pytest.mark.parametrize("name", EXACT)
def test_no_bit_of_an_image_or_sound_depends_on_those_beside_it(name: str) -> None:
    _, encoder, whole = load_media(name)
    parts = parts_of(whole.media, name)
    alone = [seen(encoder, whole.media, [part]) for part in parts]
    together = seen(encoder, whole.media, [*parts, *parts, parts[0]])
    np.testing.assert_array_equal(together[: sum(map(len, alone))], np.concatenate(alone))
