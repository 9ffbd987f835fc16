"""The model servers of a cell as kept in the store, so that the next leader knows whom to ask.

Not needed for anything to be right: a server that is missing here joins by itself within seconds.
Values in, text out; knows nothing of storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sax.types import ServerInfo


class Roster(msgspec.Struct, frozen=True):
    """Servers, with the lists of model paths that many of them share written once."""

    paths: list[tuple[str, ...]]
    servers: list[tuple[ServerInfo, int]]  # without its model paths, and where those are


def encode_roster(infos: Sequence[ServerInfo]) -> bytes:
    """The servers as JSON text."""
    numbers: dict[tuple[str, ...], int] = {}
    servers = [
        (replace(info, model_paths=()), numbers.setdefault(info.model_paths, len(numbers)))
        for info in infos
    ]
    return msgspec.json.encode(Roster(list(numbers), servers))


def decode_roster(data: bytes) -> list[ServerInfo]:
    """The servers of a JSON text. Raises msgspec.DecodeError for any other text."""
    roster = msgspec.json.decode(data, type=Roster)
    return [replace(info, model_paths=roster.paths[number]) for info, number in roster.servers]
