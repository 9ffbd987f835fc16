"""Finds where values lie in a msgpack file without reading them: arrays may be gigabytes.

The msgpack library returns whole values; here only keys and short texts are read, and binary data
is passed over. Every length is checked against the file's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_VALUES = 1_000_000
_DEEPEST = 64
_LONGEST_TEXT = 1 << 20  # bytes: paths, and the structure of a train state as text


class BadMsgpack(ValueError):
    """The bytes are no msgpack, or larger than what is read."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Binary data, by its place in the file; `code` is msgpack's extension type, or None."""

    start: int
    size: int
    code: int | None = None


Value = dict[str, Any] | list[Any] | str | int | float | bool | Bytes | None

# First byte -> format of a number, a size or a count after it.
_NUMBERS: Mapping[int, str] = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_BINARY: Mapping[int, str] = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXTS: Mapping[int, str] = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS: Mapping[int, str] = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Mapping[int, str] = {0xDE: ">H", 0xDF: ">I"}
_EXTENSIONS: Mapping[int, str] = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_FIXED_EXTENSIONS: Mapping[int, int] = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS: Mapping[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}


def index(data: memoryview, start: int = 0, end: int | None = None) -> Value:
    """Return the value in data[start:end] with binary data by place. Raises BadMsgpack."""
    reader = _ValueReader(data, start, len(data) if end is None else end)
    value = reader.value(0)
    if reader.at != reader.end:
        raise BadMsgpack(f"{reader.end - reader.at} bytes follow its value")
    return value


@dataclass(slots=True)
class _ValueReader:
    data: memoryview
    at: int
    end: int
    values: int = 0

    def value(self, depth: int) -> Value:
        self.values += 1
        if self.values > _MOST_VALUES or depth > _DEEPEST:
            raise BadMsgpack(
                f"it holds more than {_MOST_VALUES} values, or {_DEEPEST} inside each other"
            )
        first = self.data[self._skip(1)]
        if first < 0x80 or first >= 0xE0:
            return first if first < 0x80 else first - 0x100
        if first < 0xC0:
            return self._short(first, depth)
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            return self._number(_NUMBERS[first])
        return self._long(first, depth)

    def _short(self, first: int, depth: int) -> Value:
        """Read what has its size in its first byte."""
        if first < 0x90:
            return self._map(first & 0x0F, depth)
        if first < 0xA0:
            return self._list(first & 0x0F, depth)
        return self._text(first & 0x1F)

    def _long(self, first: int, depth: int) -> Value:
        if first in _TEXTS:
            return self._text(self._number(_TEXTS[first]))
        if first in _BINARY:
            size = self._number(_BINARY[first])
            return Bytes(self._skip(size), size)
        if first in _LISTS:
            return self._list(self._number(_LISTS[first]), depth)
        if first in _MAPS:
            return self._map(self._number(_MAPS[first]), depth)
        if first in _EXTENSIONS:
            return self._extension(self._number(_EXTENSIONS[first]))
        if first in _FIXED_EXTENSIONS:
            return self._extension(_FIXED_EXTENSIONS[first])
        raise BadMsgpack(f"byte {first:#x} at {self.at - 1} begins no value")

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        return dict(self._entries(count, depth))

    def _entries(self, count: int, depth: int) -> Iterator[tuple[str, Any]]:
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise BadMsgpack(f"a key before byte {self.at} is no text")
            yield key, self.value(depth + 1)

    def _list(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _text(self, size: int) -> str:
        if size > _LONGEST_TEXT:
            raise BadMsgpack(f"a text at byte {self.at} has {size} bytes")
        start = self._skip(size)
        try:
            return bytes(self.data[start : self.at]).decode()
        except UnicodeDecodeError as exc:
            raise BadMsgpack(f"a text at byte {start} is not UTF-8") from exc

    def _extension(self, size: int) -> Bytes:
        code = self.data[self._skip(1)]
        return Bytes(self._skip(size), size, code)

    def _number(self, kind: str) -> Any:
        start = self._skip(struct.calcsize(kind))
        return struct.unpack_from(kind, self.data, start)[0]

    def _skip(self, size: int) -> int:
        """Move on and return where it began."""
        start = self.at
        if size > self.end - start:
            raise BadMsgpack(f"it ends within a value of {size} bytes at {start}")
        self.at = start + size
        return start
