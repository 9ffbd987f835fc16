"""Files of CTranslate2 written here by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.ctranslate2.model_bin import ModelBin, read_model_bin

_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "bfloat16": 5}


def text(said: str) -> bytes:
    return struct.pack("<H", len(said) + 1) + said.encode() + b"\0"


def variable(name: str, array: np.ndarray) -> bytes:
    shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
    head = struct.pack("<BI", _NUMBERS[array.dtype.name], array.nbytes)
    return text(name) + shape + head + array.tobytes()


def written(
    path: Path, variables: Mapping[str, np.ndarray], aliases: Mapping[str, str], version: int = 6
) -> Path:
    parts = [struct.pack("<I", version), text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    parts += [variable(name, each) for name, each in variables.items()]
    parts.append(struct.pack("<I", len(aliases)))
    parts += [text(each) for pair in aliases.items() for each in pair]
    path.write_bytes(b"".join(parts))
    return path


def read_back(folder: Path, **variables: np.ndarray) -> ModelBin:
    return read_model_bin(written(folder / "model.bin", variables, {"same": "weight"}))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_are_read_as_they_are(tmp_path: Path, dtype: type) -> None:
    stored = np.arange(6).reshape(2, 3).astype(dtype)
    model = read_back(tmp_path, weight=stored, count=np.array(4, np.int16))
    assert model.spec == "WhisperSpec"
    assert model.tensor("weight").dtype == dtype
    np.testing.assert_array_equal(model.tensor("same"), stored)
    assert int(model.variables["count"]) == 4


def test_whole_numbers_are_divided_by_the_scale_of_their_row(tmp_path: Path) -> None:
    wanted = np.array([[0.5, -1.0, 0.25], [8.0, 2.0, -4.0]], np.float32)
    scale = 127 / np.abs(wanted).max(1)
    stored = np.round(wanted * scale[:, None]).astype(np.int8)
    model = read_back(tmp_path, weight=stored, weight_scale=scale)
    step = np.abs(wanted).max(1, keepdims=True) / 127
    assert (np.abs(model.tensor("same") - wanted) <= step / 2 + 1e-6).all()


def test_older_files_and_longer_ones_are_refused(tmp_path: Path) -> None:
    old = written(tmp_path / "old.bin", {}, {}, version=3)
    with pytest.raises(AssertionError, match="version 3"):
        read_model_bin(old)
    longer = written(tmp_path / "longer.bin", {}, {})
    longer.write_bytes(longer.read_bytes() + b"more")
    with pytest.raises(AssertionError, match="more than its counts say"):
        read_model_bin(longer)
