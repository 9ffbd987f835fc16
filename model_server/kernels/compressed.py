"""Attention to near tokens and to entries that stand for several tokens each.

Source: DeepSeek-AI 2026, "DeepSeek-V4", sections 2.3.1 and 2.3.2. Layers cache in two places. Near
pages, of a window, have a vector of each token, which is key and value of all heads, and what
entries are made of. Lasting pages have an entry for every `rate` tokens, in the page of the last of
them, so that a page depends on the tokens up to its end alone, as all pages do: they are shared,
copied and written anew like others. An entry is made in the step that has its last token.

All entries are read, by the native kernels on CPUs, else in plain XLA: those that a query did not
choose are masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.chosen import Choosing, choose
from model_server.kernels.cpu.served import reading_of
from model_server.kernels.paged import KernelRefusal, PagedBatch, PageReading, SeenPages
from model_server.kernels.pages import LayerPages, key_major_shapes, write
from model_server.kernels.whole import WholeInputs
from model_server.kernels.xla import READING


class Compression(NamedTuple):
    rate: int  # tokens that an entry stands for
    seen: int  # tokens that it is made of, the last ones up to its own


class RowPages(NamedTuple):
    """Page tables of rows of a flat batch that are read together."""

    rows: slice
    near: jax.Array  # i32[N, S/G]; arbitrary before the window
    lasting: jax.Array  # i32[N, S/G]
    limits: jax.Array  # i32[N, C], as in `PagedBatch`


class EntryParts(NamedTuple):
    """Inputs of M entries: what their tokens give to each."""

    numbers: jax.Array  # f32[M, seen, W]
    there: jax.Array  # bool[M, seen]: False before the first token
    first: jax.Array  # i32[M]: position of the first token that the entry stands for


MakeEntries = Callable[[EntryParts], jax.Array]  # f32[M, Q + I]: I numbers to choose by


@dataclass(frozen=True, slots=True)
class Compressed:
    """Pages of one layer during a step, with the new tokens written."""

    groups: tuple[RowPages, ...]
    near: LayerPages
    lasting: LayerPages | None  # None: there are no entries, or none yet of whole inputs
    reading: PageReading
    passing: bool = False  # True: pages of whole inputs, of which nothing is left

    def with_entries(self, compression: Compression, make: MakeEntries) -> Compressed:
        """Make and write the entries whose last token is new."""
        lasting = self.lasting
        for group in self.groups:
            ends = _ends(group.limits, compression.rate)
            made = make(_parts(self.near, group, ends, compression))
            if lasting is None:  # of whole inputs: a page of each one's entries
                held = made.reshape(*ends.shape, 1, -1).transpose(0, 2, 3, 1)
                return replace(self, lasting=LayerPages(held, None))
            at = _slots(group.lasting, ends, compression.rate, self.page_size)
            lasting = write(lasting, made[:, None], None, *at)
        return replace(self, lasting=lasting)

    def attend(
        self,
        q: jax.Array,  # f32[T, H, Q]
        choosing: Choosing | None,  # of entries; None: queries see all of them
        *,
        rate: int,
        most: int,  # entries that each query attends to
        window: int,
        scale: float,
        sinks: jax.Array,  # f32[H]
    ) -> jax.Array:
        """Return f32[T, H, Q], mixed of near tokens and entries."""

        def mixed(group: RowPages) -> jax.Array:
            near = self.near._replace(values=None, value_scales=None)
            seen = [SeenPages(near, group.near, group.limits, window)]
            tables = _entry_tables(group.lasting, rate, self.page_size)
            if self.lasting is not None and tables.shape[1]:
                entries = SeenPages(self.lasting, tables, group.limits // rate)
                if choosing is not None:
                    by = [_shaped(each, group) for each in choosing]
                    chosen = choose(self.reading, entries, *by, most=most)
                    entries = entries._replace(chosen=chosen)
                seen.append(entries)
            found = self.reading.attention(_shaped(q, group), seen, scale=scale, sinks=sinks)
            return found.reshape(-1, *q.shape[1:])

        return jnp.concatenate([mixed(group) for group in self.groups])

    @property
    def page_size(self) -> int:
        return self.near.keys.shape[3]


def compressed(
    batch: PagedBatch,
    near: LayerPages,
    lasting: LayerPages | None,
    keys: jax.Array,  # f32[T, 1, Q]: keys and values of near tokens
    parts: jax.Array | None,  # f32[T, 1, W]: what entries are made of
    rate: int,  # tokens that an entry stands for; 1 where there are none
) -> Compressed:
    """Write the new tokens. Raises KernelRefusal for what is not computed."""
    if batch.split is not None:
        raise KernelRefusal(
            "attention to compressed entries is not computed with the tokens of a step divided "
            "over devices: set SHARDING_RULES tokens to null"
        )
    if isinstance(batch.kernel, WholeInputs) and batch.kernel.causal:
        return _of_whole(batch, keys, parts, rate)
    if batch.kernel.shapes is not key_major_shapes or isinstance(batch.kernel, WholeInputs):
        raise KernelRefusal(
            "attention to compressed entries is computed over pages of plain XLA only, and no "
            "query sees tokens after its own"
        )
    size = near.keys.shape[3]
    if size % rate and rate % size:
        raise KernelRefusal(
            f"this model caches an entry for every {rate} tokens, and pages have {size}: give "
            "--page-size a divisor or a multiple"
        )
    windows = batch.in_windows()
    near = write(near, keys, parts, windows.pages, windows.offsets)
    decodes = batch.decode_tables.shape[0]
    groups = [
        RowPages(slice(0, decodes), windows.decode_tables, batch.decode_tables, batch.decode_limits)
    ]
    if batch.block_tables.shape[0]:
        tables = windows.block_tables, batch.block_tables
        groups.append(RowPages(slice(decodes, None), *tables, batch.block_limits))
    return Compressed(tuple(groups), near, lasting, reading_of(batch.kernel))


def _of_whole(batch: PagedBatch, keys: jax.Array, parts: jax.Array | None, rate: int) -> Compressed:
    """As `compressed`, for blocks that each hold one input: its only page."""
    inputs, length = batch.block_limits.shape
    spare = -length % rate

    def page(numbers: jax.Array) -> jax.Array:
        whole = numbers.reshape(inputs, length, 1, -1).transpose(0, 2, 1, 3)
        return jnp.pad(whole, ((0, 0), (0, 0), (0, spare), (0, 0)))

    near = LayerPages(page(keys).swapaxes(2, 3), None if parts is None else page(parts))
    tables = jnp.arange(inputs)[:, None]
    group = RowPages(slice(None), tables, tables, batch.block_limits)
    return Compressed((group,), near, None, READING, passing=True)


def _shaped(flat: jax.Array, group: RowPages) -> jax.Array:
    return flat[group.rows].reshape(group.limits.shape[0], -1, *flat.shape[1:])


def _ends(limits: jax.Array, rate: int) -> jax.Array:
    """i32[N, E]: limits of the tokens that end an entry, in i32[N, C] of a run each; 0: none."""
    columns = limits.shape[1]
    first = -(-limits[:, :1] // rate) * rate
    ends = first + rate * jnp.arange(-(-columns // rate), dtype=jnp.int32)[None]
    return jnp.where((ends <= limits.max(1, keepdims=True)) & (ends > 0), ends, 0)


def _parts(
    near: LayerPages, group: RowPages, ends: jax.Array, compression: Compression
) -> EntryParts:
    """Gather what the entries with these ends, i32[N, E], are made of; M is N E."""
    values, scales = near.values, near.value_scales
    assert values is not None, "near pages have what entries are made of"
    size, (rate, seen) = near.keys.shape[3], compression
    at = ends[..., None] - seen + jnp.arange(seen, dtype=jnp.int32)[None, None]
    columns = jnp.maximum(at, 0) // size
    pages = jnp.take_along_axis(group.near, columns.reshape(len(ends), -1), axis=1)
    where = pages.reshape(at.shape), 0, jnp.maximum(at, 0) % size
    numbers = values.at[where].get(mode="promise_in_bounds").astype(jnp.float32)
    if scales is not None:
        numbers = numbers * scales.at[where].get(mode="promise_in_bounds")[..., None]
    there = (at >= 0) & (ends > 0)[..., None]
    count = ends.size
    return EntryParts(
        numbers.reshape(count, seen, -1),
        there.reshape(count, seen),
        jnp.maximum(ends - rate, 0).reshape(-1),
    )


def _slots(
    tables: jax.Array, ends: jax.Array, rate: int, page_size: int
) -> tuple[jax.Array, jax.Array]:
    """Return pages and offsets, i32[N E] each, of entries; those without an end go to page 0."""
    last = jnp.maximum(ends - 1, 0)
    pages = jnp.take_along_axis(tables, last // page_size, axis=1)
    pages = jnp.where(ends > 0, pages, 0)
    return pages.reshape(-1), (last % page_size // rate).reshape(-1)


def _entry_tables(tables: jax.Array, rate: int, page_size: int) -> jax.Array:
    """Return the tables of the pages that have entries."""
    every = max(1, rate // page_size)
    return tables[:, every - 1 :: every]
