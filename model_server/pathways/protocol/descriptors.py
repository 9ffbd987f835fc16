"""Finds the descriptors of protocol buffers inside a compiled library.

Generated C++ code keeps the FileDescriptorProto of each file as plain bytes, without its length:
it ends where no further field of one follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from google.protobuf.descriptor_pb2 import FileDescriptorProto

_START = re.compile(rb"\x0a([\x05-\x7f])((?:xla|google)/[\w/.\-]+\.proto)")
_FIELDS = {each.number: each for each in FileDescriptorProto.DESCRIPTOR.fields}
_VARINT, _BYTES = 0, 2


class Library(Protocol):
    """bytes, or a memory-mapped file."""

    def __getitem__(self, index: slice, /) -> bytes: ...


def descriptors(library: Library) -> Mapping[str, FileDescriptorProto]:
    """Return the files of `xla/` and `google/` in a library, by name."""
    found: dict[str, FileDescriptorProto] = {}
    for start, name in _starts(library):
        if name not in found and (file := _parsed(library, start)) is not None:
            found[name] = file
    return found


def _starts(library: Library) -> Iterator[tuple[int, str]]:
    for match in _START.finditer(library):  # pyright: ignore[reportArgumentType, reportCallIssue]
        length, name = match.groups()
        if length[0] == len(name):
            yield match.start(), name.decode()


def _parsed(library: Library, start: int) -> FileDescriptorProto | None:
    """Return the file that starts there; None: its name only."""
    file = FileDescriptorProto.FromString(library[start : _end(library, start)])
    return file if file.message_type or file.enum_type or file.service else None


def _end(library: Library, start: int) -> int:
    """Return where the fields of a FileDescriptorProto end."""
    at, seen = start, set[int]()
    while True:
        tag, after = _varint(library, at)
        field, kind = _FIELDS.get(tag >> 3), tag & 7
        if field is None or (field.number in seen and not field.is_repeated):
            return at
        if kind != (_BYTES if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE) else _VARINT):
            return at
        value, after = _varint(library, after)
        seen.add(field.number)
        at = after + value if kind == _BYTES else after


def _varint(library: Library, at: int) -> tuple[int, int]:
    """Return the number there, and where it ends. 0 where none can be."""
    value = 0
    for place, byte in enumerate(library[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    return 0, at
