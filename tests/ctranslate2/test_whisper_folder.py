"""The real whisper-tiny.en, converted."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from tests.ctranslate2.model_bin import read_model_bin
from tests.ctranslate2.whisper_folder import write_whisper
from tests.real_models import whisper_tiny_en

pytestmark = pytest.mark.extended

_FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


def test_every_number_is_in_the_folder_but_the_biases_of_keys(tmp_path: Path) -> None:
    source = whisper_tiny_en()
    model = read_model_bin(source / "model.bin")
    folder = write_whisper(source, tmp_path / "folder")
    with safe_open(folder / "model.safetensors", "numpy") as file:
        names = file.keys()  # it is no mapping, and cannot be iterated
        held = sum(file.get_tensor(name).size for name in names)
        width = file.get_tensor("model.decoder.embed_tokens.weight").shape[1]
    stored = sum(each.size for each in model.variables.values() if each.dtype in _FLOATS)
    attentions = 4 + 2 * 4  # layers of the encoder, and of the decoder, which have two each
    assert held == stored - attentions * width
