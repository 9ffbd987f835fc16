"""Reads model.bin of CTranslate2's converters: little-endian, in the order of the functions below.

Strings are their length with a zero byte at the end, u16, and that many bytes. Of a matrix W that
is quantised, W holds whole numbers and W_scale f32[rows], what each row was multiplied by.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

# By the number that stands in the file.
_DTYPES = tuple(
    np.dtype(each)
    for each in (np.float32, np.int8, np.int16, np.int32, np.float16, ml_dtypes.bfloat16)
)
_OLDEST = 4  # in which variables have a number of their type


class ModelBin(NamedTuple):
    spec: str  # kind of the model, such as WhisperSpec
    variables: dict[str, np.ndarray]  # as stored
    aliases: dict[str, str]  # name -> variable

    def tensor(self, name: str) -> np.ndarray:
        """Return a variable; one that is quantised in f32."""
        stored = self.variables[self.aliases.get(name, name)]
        scale = self.variables.get(f"{self.aliases.get(name, name)}_scale")
        if scale is None:
            return stored
        return stored.astype(np.float32) / scale.reshape(-1, *[1] * (stored.ndim - 1))


def read_model_bin(path: Path) -> ModelBin:
    reader = _Reader(path.read_bytes())
    version = reader.number("I")
    assert version >= _OLDEST, f"{path.name} is of version {version}, which is not read"
    spec, _revision = reader.text(), reader.number("I")
    variables = {reader.text(): reader.array() for _ in range(reader.number("I"))}
    aliases = {reader.text(): reader.text() for _ in range(reader.number("I"))}
    assert reader.done, f"{path.name} holds more than its counts say"
    return ModelBin(spec, variables, aliases)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def done(self) -> bool:
        return self._at == len(self._data)

    def number(self, form: str) -> int:
        (found,) = struct.unpack(f"<{form}", self._taken(struct.calcsize(f"<{form}")))
        return found

    def text(self) -> str:
        return self._taken(self.number("H")).rstrip(b"\0").decode()

    def array(self) -> np.ndarray:
        shape = [self.number("I") for _ in range(self.number("B"))]
        dtype = _DTYPES[self.number("B")]
        return np.frombuffer(self._taken(self.number("I")), dtype).reshape(shape)

    def _taken(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]
