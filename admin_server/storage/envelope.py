"""Format of every object of a cell in the store: numbered, named and checksummed.

Each object carries its cell, kind, number and writer, and a checksum over all of it and its JSON
text, so that a reader detects one that is torn or foreign.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from sax.errors import SaxError
from sax.names import CellId

_FORMAT = 1
_NUMBER = re.compile(r"\d{12}")


class CorruptLog(SaxError):
    """An object of a cell is torn, foreign or missing; the text names it."""


class RecordEnvelope(msgspec.Struct, frozen=True):
    format: int
    cell: str
    kind: str
    sequence: int
    writer: str
    checksum: str
    text: msgspec.Raw


def folder_of(cell: CellId, kind: str) -> str:
    """sax/<cell>/<kind>"""
    return f"{str(cell).strip('/')}/{kind}"


def name_of(cell: CellId, kind: str, number: int) -> str:
    """sax/<cell>/<kind>/000000000042"""
    return f"{folder_of(cell, kind)}/{number:012d}"


def numbers_of(names: Sequence[str]) -> list[int]:
    """The numbers of listed names, sorted. Raises CorruptLog for a name without one."""
    numbers: list[int] = []
    for name in names:
        tail = name.rpartition("/")[2]
        if not _NUMBER.fullmatch(tail):
            raise CorruptLog(f"{name} is foreign to the log: move it elsewhere, then start again")
        numbers.append(int(tail))
    return sorted(numbers)


def known_numbers(names: Sequence[str]) -> list[int]:
    """The numbers of listed names, sorted; foreign names are passed over (see foreign_objects)."""
    tails = (name.rpartition("/")[2] for name in names)
    return sorted(int(tail) for tail in tails if _NUMBER.fullmatch(tail))


def wrap(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> bytes:
    checksum = _checksum(cell, kind, number, writer, text)
    body = RecordEnvelope(_FORMAT, str(cell), kind, number, writer, checksum, msgspec.Raw(text))
    return msgspec.json.encode(body)


def unwrap(cell: CellId, kind: str, number: int, data: bytes) -> tuple[str, bytes]:
    """Writer and text of an object, verified to belong to this name. Raises CorruptLog."""
    name = name_of(cell, kind, number)
    try:
        body = msgspec.json.decode(data, type=RecordEnvelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(
            f"{name} is torn or not a valid record ({len(data)} bytes; {exc}): "
            "restore it from a backup"
        ) from exc
    if body.format != _FORMAT:
        raise CorruptLog(
            f"{name} is in format {body.format}: a newer sax wrote it, run that version"
        )
    if (body.cell, body.kind, body.sequence) != (str(cell), kind, number):
        raise CorruptLog(
            f"{name} is foreign: it claims to be number {body.sequence} of the {body.kind} of "
            f"{body.cell}; restore the right one from a backup"
        )
    text = bytes(body.text)
    if body.checksum != _checksum(cell, kind, number, body.writer, text):
        raise CorruptLog(f"{name} does not match its checksum: restore it from a backup")
    return body.writer, text


def _checksum(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> str:
    head = f"{_FORMAT} {cell} {kind} {number} {writer} ".encode()
    return hashlib.sha256(head + text).hexdigest()
