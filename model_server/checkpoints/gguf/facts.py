"""Typed access to the metadata of one architecture.

Raises CheckpointError without a file name, which the caller adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.header import GgufHeader
from sax.errors import CheckpointError

REQUIRED: Any = object()
_LAYERS = "block_count"


@dataclass(frozen=True, slots=True)
class Key:
    """A value held by both config.json and the metadata."""

    name: str  # in config.json
    suffix: str  # in the metadata, after the architecture's name
    kind: type = int  # int, float or bool
    default: Any = REQUIRED  # used when either side omits it; None: the model has no such value
    least: int = 1  # smallest int


class Facts:
    """The metadata and tensors of a file, read for its architecture."""

    def __init__(
        self, header: GgufHeader, prefix: str, factors: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.tensors = header.tensors
        self.factors = factors or {}  # rotary factors, stored as tensors
        self._metadata = header.metadata
        self._prefix = prefix
        self._read: set[str] = set()

    def value(self, key: Key) -> Any:
        """Return a bool or a number. Raises CheckpointError for anything else."""
        if key.kind is bool:
            return self.flag(key.suffix, key.default)
        if key.default is None and self.get(key.suffix) is None:
            return None
        if key.least == 0 and self.get(key.suffix, key.default) == 0:
            return 0
        default = None if key.default is REQUIRED else key.default
        return (self.whole if key.kind is int else self.number)(key.suffix, default)

    def whole(self, suffix: str, default: int | None = None) -> int:
        """Return an int above zero, which may be listed for every layer if it is the same in all.

        Raises CheckpointError for anything else.
        """
        value = _of_all(
            self.get_any(suffix, default), self._metadata.get(f"{self._prefix}.{_LAYERS}")
        )
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self._wrong(suffix, "a whole number above 0", value)
        return value

    def number(self, suffix: str, default: float | None = None) -> float:
        """Return a finite float above zero. Raises CheckpointError for anything else."""
        value = self.get(suffix, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise self._wrong(suffix, "a number above 0", value)
        return float(value)

    def flag(self, suffix: str, default: bool) -> bool:
        value = self.get(suffix, default)
        if not isinstance(value, bool):
            raise self._wrong(suffix, "true or false", value)
        return value

    def get(self, suffix: str, default: Any = None) -> Any:
        """Return a str, bool or number as stored. Raises CheckpointError for a list."""
        value = self.get_any(suffix, default)
        if isinstance(value, list | np.ndarray):
            raise self._wrong(suffix, "one value", value)
        return value

    def get_any(self, suffix: str, default: Any = None) -> Any:
        """Return the value as stored, which may be a list."""
        self._read.add(suffix)
        return self._metadata.get(f"{self._prefix}.{suffix}", default)

    def listed(self, suffix: str, count: int, default: list[Any] | None = None) -> list[Any]:
        """Return the first `count` of a list. Raises CheckpointError for anything else."""
        value = self.get_any(suffix, default)
        if not isinstance(value, list | np.ndarray) or len(value) < count:
            raise self._wrong(suffix, f"a list of {count}", value)
        return [each.item() if isinstance(each, np.generic) else each for each in value[:count]]

    def unread(self) -> dict[str, Any]:
        """Return the architecture's values, by suffix, that nothing has asked for."""
        start = f"{self._prefix}."
        own = {key: key.removeprefix(start) for key in self._metadata if key.startswith(start)}
        return {
            suffix: self._metadata[key] for key, suffix in own.items() if suffix not in self._read
        }

    def has(self, tensor: str) -> bool:
        return tensor in self.tensors

    def rows(self, tensor: str) -> int:
        """Return the rows of a stored matrix. Raises CheckpointError if there is none."""
        return self.shape(tensor, 2)[0]

    def shape(self, tensor: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a stored tensor. Raises CheckpointError if it has others."""
        found = self.tensors.get(tensor)
        if found is None or len(found.shape) != dimensions:
            what = {1: "a vector", 2: "a matrix"}.get(dimensions, f"of {dimensions} dimensions")
            raise CheckpointError(f"it has no {tensor}, or one that is not {what}")
        return found.shape

    def _wrong(self, suffix: str, wanted: str, value: Any) -> CheckpointError:
        key = f"{self._prefix}.{suffix}"
        return CheckpointError(f"its metadata {key} must be {wanted}; it is {value!r}")


def _of_all(value: Any, layers: Any) -> Any:
    """Return the number that a list has for each of the layers; anything else as it is."""
    if type(layers) is not int or not isinstance(value, np.ndarray) or len(value) != layers:
        return value
    return value[0].item() if len(set(value.tolist())) == 1 else value
