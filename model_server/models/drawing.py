"""Which rows of a random weight are drawn together.

How a weight is cut depends on the mesh (fused projections, copied KV heads); what it holds must
not. So each part is drawn by the name of where it is stored. Knows nothing of numbers or devices.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from model_server.models.source import Joined, RepeatedGroups, Source


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows drawn as one array, after which every group of them is repeated."""

    key: int  # that the draw is made from, beside the seed
    count: int  # before they are repeated
    group: int
    times: int


def rows_of(source: Source, count: int, path: str) -> tuple[Rows, ...]:
    """The parts of a weight of `count` rows, in order. `path` names what has no source."""
    return tuple(_parts(source, count, path))


def _parts(source: Source, count: int, path: str) -> Iterator[Rows]:
    if isinstance(source, Joined) and source.sizes is not None:
        for part, size in zip(source.parts, source.sizes, strict=True):
            yield from _parts(part, size, path)
        return
    group, times = count, 1
    if isinstance(source, RepeatedGroups):
        source, group, times = source.part, source.size, source.times
    # An expression's text says all that it is made of.
    name = repr(source) if source.names else path
    yield Rows(zlib.crc32(name.encode()), count // times, group, times)
