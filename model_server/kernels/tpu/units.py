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
    tables = jnp.concatenate([batch.decode_tables.reshape(-1), batch.block_tables.reshape(-1)])
    number = counts.shape[0]
    own = jnp.where(counts > 0, jnp.arange(number, dtype=jnp.int32), number)
    busy = jax.lax.cummin(jnp.append(own, jnp.int32(number)), reverse=True)
    return Units(
        tables, starts, counts, first // page_size, (ends + page_size - 1) // page_size, busy
    )


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
