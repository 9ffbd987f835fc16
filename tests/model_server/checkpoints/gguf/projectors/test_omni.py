"""Pictures and sounds of one file, through the whole model: as those of the folder."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.loading.images.prepared import PreparedImage, with_digest
from tests.model_server.checkpoints.gguf.test_converted import write
from tests.model_server.checkpoints.gguf.test_media import MediaCase, encoder_of, read
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    load_media_from,
    prepared_of,
)
from tests.model_server.models.media.media_runs import logits_with_images, seen


@pytest.mark.parametrize(
    "name", ["qwen2_5_omni", pytest.param("qwen3_omni_moe", marks=pytest.mark.nightly)]
)
def test_a_picture_and_a_sound_give_the_folders_log_probabilities(
    name: str, tmp_path: Path
) -> None:
    case = MediaCase(name)
    found = log_probabilities(case, case.files(tmp_path))
    with_numbers_of_the_file = case.folder(tmp_path / "folder")
    tensors = {n: as_halves(x) if ".conv" in n else x for n, x in case.tensors.items()}
    save_file(tensors, with_numbers_of_the_file / "model.safetensors", {"format": "pt"})
    wanted = log_probabilities(case, with_numbers_of_the_file)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert np.abs(found).max() > 1


def as_halves(numbers: np.ndarray) -> np.ndarray:
    """Round the weights of a convolution as the converter does."""
    return numbers if numbers.ndim < 2 else numbers.astype(np.float16).astype(np.float32)


def log_probabilities(case: MediaCase, path: Path) -> np.ndarray:
    """f32[S, V] of a prompt with a picture and a sound."""
    decoder, encoder, whole = load_media_from(path)
    given, prompt, parts = golden_media_of(case.name), [5, 6, 7], list[PreparedImage]()
    for at, key in enumerate(("image_0", "sound_0")):
        medium = prepared_of(whole.media[at], given[key], beside=True)
        parts += [with_digest(part, "", at) for part in medium.parts]
        prompt += [whole.media[at].token] * sum(part.rows for part in medium.parts) + [8, 9]
    rows = seen(encoder, whole.media, parts)
    logits = logits_with_images(decoder, whole.media, np.asarray(prompt), rows, parts)
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits), axis=-1))


def test_levels_that_a_file_announces_and_lacks_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = MediaCase("qwen3_omni_moe")
    tensors = {name: x for name, x in encoder_of(case).items() if ".deepstack." not in name}
    path = case.files(tmp_path)
    write(tmp_path / "mmproj-x-F16.gguf", case.both["media"]["metadata"], tensors)
    found = read(path, {})
    assert "lacks what pictures give the first layers" in caplog.text
    assert [recipe.levels for recipe in found.media] == [0, 0]
    whole = read(case.folder(tmp_path / "f"), {})
    assert whole.media[0].levels == 2
    deep = {name for name in whole.weights if ".deep" in name}
    assert whole.weights.keys() - found.weights.keys() == deep
