"""Packs a Step into one array of numbers, and names its parts for unpacking on the device.

The host sends everything about a step in a single i32 vector: one transfer for any bucket. Page
tables and sampling settings are mirrored here, so that a Step carries only changes. No jax: the
device side unpacks with the same `ColumnLayout`.
"""

from __future__ import annotations

import struct

import numpy as np

from model_server.engine.column_layout import SAMPLING_COLUMNS, ColumnLayout
from model_server.engine.limits import EngineLimits
from model_server.engine.media import RowMedia
from model_server.engine.types import Row, Sampling, Step
from model_server.models.long_positions import LONG

_FORMAT = "<" + "".join(column.kind for column in SAMPLING_COLUMNS.values())
_PADDING = np.frombuffer(
    struct.pack(_FORMAT, *(column.padding for column in SAMPLING_COLUMNS.values())), np.int32
)


class StepArrays:
    """Host mirror of the device's per-slot state; packs steps."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._tables = np.zeros((limits.slots, limits.pages_per_sequence), np.int32)
        self._window_tables = (
            np.zeros_like(self._tables) if limits.windows.sliding is not None else None
        )
        self._samplings = np.zeros((limits.slots, len(SAMPLING_COLUMNS)), np.int32)

    def pack(self, step: Step, layout: ColumnLayout) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Return the step's vector, and for each step row the range of its logit rows."""
        self._apply(step)
        vector = np.zeros(layout.size, np.int32)  # fresh: the device may still read the last one
        views = layout.views(vector)
        views["decode_slots"].fill(self._limits.slots)  # the scratch slot
        views["row_slot"].fill(self._limits.slots)
        views["target"].fill(-1)
        views["draft"].fill(-1)
        for name, padding in zip(SAMPLING_COLUMNS, _PADDING, strict=True):
            if padding:
                views[name].fill(padding)
        decodes = [row for row in step.rows if row.is_decode]
        self._pack_decodes(decodes, views, layout)
        ranges = {id(row): (i, i + 1) for i, row in enumerate(decodes)}
        next_row = len(decodes)
        block = 0
        for row in step.rows:
            if not row.is_decode:
                used = self._pack_prefill(row, views, layout, block, next_row)
                ranges[id(row)] = (next_row, next_row + used)
                next_row += used
                block += -(-row.count // self._limits.prefill_block)
        return vector, [ranges[id(row)] for row in step.rows]

    def idle(self, layout: ColumnLayout) -> np.ndarray:
        """Return the vector of a step of padding alone."""
        vector, _ = self.pack(Step(0, ()), layout)
        return vector

    def full(self, layout: ColumnLayout) -> np.ndarray:
        """Return the vector of a step that computes every row, on the scratch slot and page."""
        vector = self.idle(layout)
        views = layout.views(vector)
        views["decode_limits"].fill(1)
        views["block_limits"].fill(1)
        views["target"].fill(0)  # a token to score: nothing is drawn
        return vector

    def tables(self, slots: list[int]) -> np.ndarray:
        """Return the page tables of slots, as of the last step packed: i32[n, S/G]."""
        return self._tables[slots]

    def _apply(self, step: Step) -> None:
        for grant in step.grants:
            entries = slice(grant.first, grant.first + len(grant.pages))
            self._tables[grant.slot, entries] = grant.pages
            if self._window_tables is not None:
                self._window_tables[grant.slot, entries] = grant.window_pages
        for change in step.samplings:
            self._samplings[change.slot] = _numbers(change.sampling)

    def _pack_decodes(
        self, rows: list[Row], views: dict[str, np.ndarray], layout: ColumnLayout
    ) -> None:
        if not rows:
            return
        count = len(rows)
        slots = np.fromiter((row.slot for row in rows), np.int32, count)
        starts = np.fromiter((row.start for row in rows), np.int32, count)
        tables = self._tables[slots]
        views["tokens"][:count] = [row.given for row in rows]
        views["positions"][..., :count] = starts
        if layout.has_triples:
            views["positions"][..., :count] += [row.media.shift if row.media else 0 for row in rows]
        if self._limits.short_context is not None:
            views["positions"][:count] += [LONG * row.long for row in rows]
        if self._limits.adapters:
            views["adapters"][:count] = [row.adapter for row in rows]
        views["decode_slots"][:count] = slots
        views["decode_tables"][:count] = tables
        views["decode_limits"][:count, 0] = starts + 1
        views["pages"][:count] = tables[np.arange(count), starts // self._limits.page_size]
        views["offsets"][:count] = starts % self._limits.page_size
        if self._window_tables is not None:
            tables = self._window_tables[slots]
            views["window_decode_tables"][:count] = tables
            views["window_pages"][:count] = tables[
                np.arange(count), starts // self._limits.page_size
            ]
        if self._limits.draft_states:
            views["draft_pages"][:count] = [row.state for row in rows]
        views["row_index"][:count] = np.arange(count)
        # A draft token is tried right behind another row of its sequence.
        tried = np.flatnonzero(slots[1:] == slots[:-1]) + 1
        views["draft"][tried] = views["tokens"][tried]
        self._pack_samplings(views, slice(0, count), slots, starts + 1)

    def _pack_prefill(
        self, row: Row, views: dict[str, np.ndarray], layout: ColumnLayout, block: int, first: int
    ) -> int:
        """Write one prompt chunk starting at `block`; return how many logit rows it uses."""
        size, count = self._limits.prefill_block, row.count
        blocks = -(-count // size)
        flat = layout.bucket.decodes + block * size
        table = self._tables[row.slot]
        positions = np.arange(row.start, row.start + count, dtype=np.int32)
        views["tokens"][flat : flat + count] = row.tokens
        if row.adapter:
            views["adapters"][flat : flat + count] = row.adapter
        views["positions"][..., flat : flat + count] = positions + LONG * row.long
        if row.media is not None:
            self._pack_media(row, row.media, views, layout, slice(flat, flat + count))
        views["pages"][flat : flat + count] = table[positions // self._limits.page_size]
        views["offsets"][flat : flat + count] = positions % self._limits.page_size
        views["block_tables"][block : block + blocks] = table
        if self._window_tables is not None:
            tables = self._window_tables[row.slot]
            views["window_block_tables"][block : block + blocks] = tables
            views["window_pages"][flat : flat + count] = tables[positions // self._limits.page_size]
        views["block_limits"].reshape(-1)[block * size : block * size + count] = positions + 1
        used = row.logit_rows
        views["row_index"][first : first + used] = np.arange(flat + count - used, flat + count)
        if row.targets:
            self._pack_targets(row, views, slice(first, first + len(row.targets)))
        if row.yields:
            end = np.array([row.start + count], np.int32)
            last = slice(first + used - 1, first + used)
            self._pack_samplings(views, last, np.array([row.slot]), end)
        return used

    def _pack_media(
        self,
        row: Row,
        media: RowMedia,
        views: dict[str, np.ndarray],
        layout: ColumnLayout,
        at: slice,
    ) -> None:
        if layout.has_triples:
            given = np.frombuffer(media.positions, "<i4").reshape(-1, 3)
            views["positions"][:, at] += media.shift
            views["positions"][:, at.start : at.start + len(given)] = given.T
        if media.together:
            ahead = views["block_ahead"].reshape(-1)
            first_block = at.start - layout.bucket.decodes
            for first, end in media.together:
                left = np.arange(end - first - 1, -1, -1)
                ahead[first_block + first : first_block + end] = left

    def _pack_targets(self, row: Row, views: dict[str, np.ndarray], at: slice) -> None:
        views["target"][at] = row.targets
        if row.target_tops is not None:
            views["tops"][at] = max(row.target_tops, 1)  # 0 would leave out the ranks, too

    def _pack_samplings(
        self, views: dict[str, np.ndarray], at: slice, slots: np.ndarray, positions: np.ndarray
    ) -> None:
        settings = self._samplings[slots]
        views["row_slot"][at] = slots
        views["row_position"][at] = positions
        for column, name in enumerate(SAMPLING_COLUMNS):
            views[name][at] = settings[:, column]


def _numbers(sampling: Sampling) -> np.ndarray:
    values = (column.read(sampling) for column in SAMPLING_COLUMNS.values())
    return np.frombuffer(struct.pack(_FORMAT, *values), np.int32)
