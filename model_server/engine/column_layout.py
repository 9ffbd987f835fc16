"""Names the parts of a step's vector: what the host packs and the device unpacks. No jax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.limits import EngineLimits
from model_server.engine.types import Sampling
from sax.fields.sampling import DEVICE_FIELDS


class Column(NamedTuple):
    """One number of every logit row: an i32, or the bits of a float or of a u32."""

    kind: str  # as in `struct`: f, i, I
    read: Callable[[Sampling], float]
    padding: float = 0  # of rows that are not used: must not switch anything on


SAMPLING_COLUMNS = {
    **{n: Column(row.column, attrgetter(n), row.off) for n, row in DEVICE_FIELDS.items()},
    "seed_high": Column("I", lambda sampling: sampling.seed >> 32),
    "seed_low": Column("I", lambda sampling: sampling.seed & 0xFFFFFFFF),
    "tops": Column("i", attrgetter("logprobs")),
    "edits": Column("i", attrgetter("edits")),
}
# Of each logit row: what the choice of its token needs.
ROW_COLUMNS = ("row_slot", "row_position", "target", "draft", *SAMPLING_COLUMNS)
# Places in the pages of window layers, if these have their own.
WINDOW_PARTS = ("window_pages", "window_decode_tables", "window_block_tables")


def logit_rows(bucket: Bucket, limits: EngineLimits) -> int:
    """Return R: one per decode row; buckets with prompts also have rows for scores."""
    return max(bucket.decodes, limits.max_logit_rows) if bucket.blocks else bucket.decodes


def row_counts(buckets: Iterable[Bucket], limits: EngineLimits) -> tuple[int, ...]:
    """Return each R of the buckets once, in rising order."""
    return tuple(sorted({logit_rows(bucket, limits) for bucket in buckets}))


def places_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Map each name to (offset, shape) in one vector."""
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    offset = 0
    for name, shape in shapes.items():
        places[name] = (offset, shape)
        offset += math.prod(shape)
    return places


@dataclass(frozen=True)
class ColumnLayout:
    """Offsets and shapes of the vector's parts, for one bucket."""

    bucket: Bucket
    limits: EngineLimits

    @property
    def has_window_pages(self) -> bool:
        """True if some layers have page tables of their own."""
        return self.limits.windows.sliding is not None

    @property
    def has_triples(self) -> bool:
        """True if a position is three numbers."""
        return self.limits.media is not None and self.limits.media.triples

    @property
    def looks_ahead(self) -> bool:
        """True if tokens of an image or of a prompt also see those after them."""
        return self.limits.looks_ahead and self.bucket.blocks > 0

    @property
    def tokens(self) -> int:
        return self.bucket.tokens(self.limits.prefill_block)

    @property
    def logit_rows(self) -> int:
        """R, as `logit_rows`."""
        return logit_rows(self.bucket, self.limits)

    @property
    def choices(self) -> int:
        """Offset of the row columns, i32[len(ROW_COLUMNS), R], which end the vector."""
        return self.size - len(ROW_COLUMNS) * self.logit_rows

    @cached_property
    def parts(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Map each name to (offset, shape)."""
        d, n, c = self.bucket.decodes, self.bucket.blocks, self.limits.prefill_block
        t, r, s = self.tokens, self.logit_rows, self.limits.pages_per_sequence
        apart = self.has_window_pages
        shapes = {
            "tokens": (t,),
            "positions": (3, t) if self.has_triples else (t,),
            "pages": (t,),
            "offsets": (t,),
            "decode_slots": (d,),
            "decode_tables": (d, s),
            "decode_limits": (d, 1),
            "block_tables": (n, s),
            "block_limits": (n, c),
            **({"block_ahead": (n, c)} if self.looks_ahead else {}),
            **(dict(zip(WINDOW_PARTS, ((t,), (d, s), (n, s)), strict=True)) if apart else {}),
            **({"draft_pages": (d,)} if self.limits.draft_states else {}),
            "row_index": (r,),
            **({"adapters": (t,)} if self.limits.adapters else {}),
            **dict.fromkeys(ROW_COLUMNS, (r,)),
        }
        return places_of(shapes)

    @cached_property
    def size(self) -> int:
        offset, shape = list(self.parts.values())[-1]
        return offset + math.prod(shape)

    @cached_property
    def _slices(self) -> list[tuple[str, slice, tuple[int, ...]]]:
        return [
            (name, slice(offset, offset + math.prod(shape)), shape)
            for name, (offset, shape) in self.parts.items()
        ]

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: vector[part] if len(shape) == 1 else vector[part].reshape(shape)
            for name, part, shape in self._slices
        }
