"""The TPU kernel's work list, as integer vectors for its scalar core.

A unit is a few queries of one sequence that attend together: a decode row, or a part of a prompt
block. A run is a few new tokens that go into one group of a page.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.paged import PagedBatch, first_seen


class Units(NamedTuple):
    """i32[U] unless stated otherwise. A sequence without tokens sees no page."""

    tables: jax.Array  # i32[(D + N) * S/G]: the page tables, concatenated
    starts: jax.Array  # cached tokens that the first query sees; each later one sees one more
    counts: jax.Array  # of queries
    first_pages: jax.Array  # first page any query sees, as an index into the table
    end_pages: jax.Array
    busy: jax.Array  # i32[U + 1]: first unit from this one on with queries; U: none
    # i32[R * U] each, run by run: tokens that see each other, of which a unit has queries. None: no
    # query sees tokens behind itself.
    begins: jax.Array | None = None
    ends: jax.Array | None = None

    @property
    def runs_ahead(self) -> int:
        """R: runs that a unit has, at most."""
        return 0 if self.begins is None else self.begins.shape[0] // self.starts.shape[0]


class Runs(NamedTuple):
    """i32[W] each; runs that have tokens come first. Runs of one group are adjacent."""

    total: jax.Array  # i32[1]: number of runs with tokens
    rows: jax.Array  # of the first token in the flat batch
    pages: jax.Array
    groups: jax.Array  # within that page
    offsets: jax.Array  # of the first token, within that group
    counts: jax.Array  # of tokens
    fresh: jax.Array  # 0: continues the previous run's group
    final: jax.Array  # 0: the next run continues this group


def units_of(
    batch: PagedBatch, queries: int, page_size: int, window: int | None, chunk: int | None = None
) -> Units:
    """Units of a batch, with blocks split into parts of `queries` tokens.

    Positions in a block are consecutive, padding last. Equal for all layers with this window, so
    XLA computes it once.
    """
    parts = batch.block_limits.reshape(-1, queries)
    starts = jnp.concatenate([batch.decode_limits[:, 0], parts[:, 0]])
    counts = jnp.concatenate(
        [(batch.decode_limits[:, 0] > 0).astype(jnp.int32), (parts > 0).sum(1, dtype=jnp.int32)]
    )
    first = jnp.maximum(first_seen(starts, window, chunk), 0)
    ends = jnp.where(counts > 0, starts + counts - 1, 0)
    runs = None
    if batch.block_ahead is not None:
        runs = _runs_ahead(batch, queries)
        ends = jnp.maximum(ends, runs[1].max(0))
    tables = jnp.concatenate([batch.decode_tables.reshape(-1), batch.block_tables.reshape(-1)])
    number = counts.shape[0]
    own = jnp.where(counts > 0, jnp.arange(number, dtype=jnp.int32), number)
    busy = jax.lax.cummin(jnp.append(own, jnp.int32(number)), reverse=True)
    pages = first // page_size, (ends + page_size - 1) // page_size
    seen = () if runs is None else tuple(each.reshape(-1) for each in runs)
    return Units(tables, starts, counts, *pages, busy, *seen)


def most_runs(queries: int, least: int) -> int:
    """Return R: the runs of `least` tokens or more that so many neighbours may be of."""
    return 1 if queries == 1 else 2 + (queries - 2) // least


def most_queries(runs: int, least: int) -> int:
    """Return how many neighbours are of no more runs of `least` tokens or more."""
    return (runs - 1) * least + 1


def _runs_ahead(batch: PagedBatch, queries: int) -> tuple[jax.Array, jax.Array]:
    """Return where the runs of each unit begin and end: i32[R, U]; decode rows have none."""
    assert batch.block_ahead is not None
    number = most_runs(queries, batch.least_run)
    limits, ahead = batch.block_limits.reshape(-1, queries), batch.block_ahead.reshape(-1, queries)
    none, known = jnp.iinfo(jnp.int32).max, jnp.zeros(limits.shape[0], jnp.int32)
    begins: list[jax.Array] = []
    ends: list[jax.Array] = []
    for _ in range(number):
        reach = jnp.where((ahead > 0) & (limits + ahead > known[:, None]), limits + ahead, none)
        end = reach.min(1)
        begin = jnp.where(reach == end[:, None], limits - 1, none).min(1)
        known = jnp.where(end == none, known, end)
        begins.append(jnp.where(end == none, 0, begin))
        ends.append(jnp.where(end == none, 0, end))
    decodes = jnp.zeros((number, batch.decode_tables.shape[0]), jnp.int32)
    rows = (jnp.concatenate([decodes, jnp.stack(each)], axis=1) for each in (begins, ends))
    return next(rows), next(rows)


def runs_of(batch: PagedBatch, group: int) -> Runs:
    """Runs of all new tokens; page sizes are multiples of `group`."""
    decodes, (blocks, size) = batch.decode_tables.shape[0], batch.block_limits.shape
    most = (size + group - 2) // group + 1 if size else 1  # groups a block can touch
    begins = decodes + size * jnp.arange(blocks, dtype=jnp.int32)[:, None]
    ahead = batch.offsets[begins] % group if blocks else jnp.zeros((0, 1), jnp.int32)
    starts = (group * jnp.arange(most, dtype=jnp.int32))[None]
    within = jnp.maximum(starts - ahead, 0)
    there = (batch.block_limits > 0).sum(1, dtype=jnp.int32)[:, None]
    rows = jnp.concatenate([jnp.arange(decodes, dtype=jnp.int32), (begins + within).reshape(-1)])
    left = jnp.concatenate(
        [(batch.decode_limits[:, 0] > 0).astype(jnp.int32), (there - within).reshape(-1)]
    )
    order = jnp.argsort(left <= 0, stable=True)
    return _joined(rows[order], left[order], batch, group)


def _joined(rows: jax.Array, left: jax.Array, batch: PagedBatch, group: int) -> Runs:
    total = (left > 0).sum(dtype=jnp.int32)
    safe = jnp.minimum(rows, batch.pages.shape[0] - 1)
    pages, offsets = batch.pages[safe], batch.offsets[safe]
    groups, offsets = offsets // group, offsets % group
    same = (pages[1:] == pages[:-1]) & (groups[1:] == groups[:-1])
    same &= jnp.arange(1, rows.shape[0]) < total
    fresh, final = jnp.append(True, ~same), jnp.append(~same, True)
    counts = jnp.minimum(left, group - offsets)
    flags = (fresh.astype(jnp.int32), final.astype(jnp.int32))
    return Runs(total[None], safe, pages, groups, offsets, counts, *flags)
