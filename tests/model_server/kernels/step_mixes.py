"""Steps for kernels: mixes of decodes and prompt chunks, and pages that were filled before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.paged import Kernel, PagedBatch
from model_server.kernels.pages import CacheShape, LayerPages, allocate, write


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What is attended to, and how."""

    heads: int
    kv_heads: int
    key_dim: int = 128
    value_dim: int = 128
    page_size: int = 16
    dtype: str = "float32"
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False
    chunk: int | None = None

    @property
    def cache(self) -> CacheShape:
        return CacheShape(
            layers=1, kv_heads=self.kv_heads, key_dim=self.key_dim, value_dim=self.value_dim
        )


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Lengths of the sequences that decode (0: padding), and chunks of prompts: start, count."""

    decodes: Sequence[int]
    chunks: Sequence[tuple[int, int]]
    blocks: int
    block: int
    table: int  # pages of a sequence
    owners: Sequence[int] | None = None  # whose pages each decode row has; None: each its own
    run: int = 0  # tokens of runs that see each other, in chunks; 0: none do
    text: int = 0  # tokens of each sequence before the first run

    @property
    def pages(self) -> int:
        return (len(self.decodes) + len(self.chunks)) * self.table

    @property
    def tokens(self) -> int:
        return len(self.decodes) + self.blocks * self.block

    def batch(self, rng: np.random.Generator, page_size: int, kernel: Kernel) -> PagedBatch:
        """Every sequence has pages of its own, anywhere in the pool."""
        tables = 1 + rng.permutation(self.pages).reshape(-1, self.table)
        rows = len(self.decodes)
        places = np.zeros((2, self.tokens), np.int32)
        decode_tables = np.zeros((rows, self.table), np.int32)
        block_tables = np.zeros((self.blocks, self.table), np.int32)
        limits = np.zeros((self.blocks, self.block), np.int32)
        ahead = np.zeros_like(limits)

        def put(first: int, at: np.ndarray, table: np.ndarray) -> None:
            places[:, first : first + len(at)] = table[at // page_size], at % page_size

        for row, length in enumerate(self.decodes):
            if length:
                own = tables[row if self.owners is None else self.owners[row]]
                decode_tables[row] = own
                put(row, np.arange(length - 1, length), own)
        used = 0
        for table, (start, count) in zip(tables[rows:], self.chunks, strict=True):
            at, more = np.arange(start, start + count), -(-count // self.block)
            put(rows + used * self.block, at, table)
            limits[used : used + more].reshape(-1)[:count] = at + 1
            block_tables[used : used + more] = table
            if self.run:  # one behind the other, with a token between them
                within = (at - self.text) % (self.run + 1)
                left = np.minimum(self.run - 1 - within, start + count - 1 - at)
                left = np.where(at < self.text, 0, left)
                ahead[used : used + more].reshape(-1)[:count] = np.maximum(left, 0)
            used += more
        fields = (*places, decode_tables, np.asarray(self.decodes, np.int32)[:, None])
        batch = PagedBatch(*map(jnp.asarray, (*fields, block_tables, limits)), kernel=kernel)
        if not self.run:
            return batch
        return replace(batch, block_ahead=jnp.asarray(ahead), least_run=self.run)


def filled(rng: np.random.Generator, of: Heads, pages: int) -> LayerPages:
    """Pages as the reference has them, every one full."""
    at = np.arange((pages + 1) * of.page_size)
    return write(
        allocate(of.cache, pages, of.page_size, jnp.dtype(of.dtype))[0],
        normal(rng, len(at), of.kv_heads, of.key_dim),
        normal(rng, len(at), of.kv_heads, of.value_dim) if of.value_dim else None,
        jnp.asarray(at // of.page_size),
        jnp.asarray(at % of.page_size),
    )


def normal(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def as_on_tpu(layer: LayerPages, shapes: LayerPages) -> LayerPages:
    """The reference's pages as they would lie in these shapes, padded with zeros."""
    keys: Any = np.asarray(layer.keys).swapaxes(2, 3)
    values: Any = None if layer.values is None else np.asarray(layer.values)
    if values is not None and shapes.values is None:
        keys, values = np.concatenate([keys, values], axis=-1), None
    scales = [None if s is None else np.asarray(s)[:, :, None] for s in layer[2:]]
    return jax.tree.map(
        lambda array, like: jnp.asarray(
            np.pad(array, [(0, n - m) for m, n in zip(array.shape, like.shape, strict=True)])
        ),
        LayerPages(keys, values, *scales),
        shapes,
    )
