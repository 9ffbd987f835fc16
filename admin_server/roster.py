"""The model servers of a cell as kept in the store, so that the next leader knows whom to poll.

Only an optimization: a server missing here joins by itself within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sax.types import ServerInfo


class Roster(msgspec.Struct, frozen=True):
    """Servers, with each shared list of model paths stored once."""

    paths: list[tuple[str, ...]]
    servers: list[tuple[ServerInfo, int]]  # without model paths, and their index in `paths`


def encode_roster(infos: Sequence[ServerInfo]) -> bytes:
    numbers: dict[tuple[str, ...], int] = {}
    servers = [
        (replace(info, model_paths=()), numbers.setdefault(info.model_paths, len(numbers)))
        for info in infos
    ]
    return msgspec.json.encode(Roster(list(numbers), servers))


def decode_roster(data: bytes) -> list[ServerInfo]:
    """Raises msgspec.DecodeError for anything but a roster."""
    roster = msgspec.json.decode(data, type=Roster)
    return [replace(info, model_paths=roster.paths[number]) for info, number in roster.servers]
