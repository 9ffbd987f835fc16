"""Steps of one attention layer on one chip, as two kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.paged import Kernel, PagedBatch
from model_server.kernels.pages import CacheShape

BLOCK = 128  # prompt tokens per block of a step, as on TPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """Lengths of decoding sequences, the new token included, and a chunk of one prompt."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    decodes: Sequence[int] = ()
    start: int = 0  # of the chunk in its prompt
    chunk: int = 0  # tokens, a multiple of BLOCK; 0: none
    page: int = 64
    table: int  # pages of the longest context that the model serves

    @property
    def lengths(self) -> tuple[int, ...]:
        """Cached tokens of each sequence, the step's own included."""
        return (*self.decodes, *([self.start + self.chunk] if self.chunk else []))

    @property
    def counts(self) -> tuple[int, ...]:
        """New tokens of each sequence."""
        return (*(1 for _ in self.decodes), *([self.chunk] if self.chunk else []))

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def pages(self) -> int:
        return len(self.lengths) * self.table

    @property
    def cache(self) -> CacheShape:
        dim = self.head_dim
        return CacheShape(layers=1, kv_heads=self.kv_heads, key_dim=dim, value_dim=dim)

    @property
    def least_bytes(self) -> int:
        """Bytes of every sequence's bfloat16 keys and values, once."""
        return sum(self.lengths) * 4 * self.kv_heads * self.head_dim

    @property
    def least_flops(self) -> int:
        """FLOPs of the scores that queries see and of their values."""
        past = (length - count for length, count in zip(self.lengths, self.counts, strict=True))
        seen = sum(
            before * count + count * (count + 1) // 2
            for before, count in zip(past, self.counts, strict=True)
        )
        return 4 * self.heads * self.head_dim * seen

    @property
    def tables(self) -> np.ndarray:
        """i32[sequences, table]: pages of each sequence, from 1 on."""
        return 1 + np.arange(self.pages, dtype=np.int32).reshape(-1, self.table)

    def batch(self, kernel: Kernel) -> PagedBatch:
        """The step for a kernel of ours: decode rows, then the chunk in blocks."""
        rows, blocks = len(self.decodes), self.chunk // BLOCK
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        at = np.concatenate(
            [np.arange(n - c, n) for n, c in zip(self.lengths, self.counts, strict=True)]
        )
        prompt = np.broadcast_to(self.tables[rows:], (blocks, self.table))
        limits = self.start + 1 + np.arange(self.chunk).reshape(blocks, BLOCK)
        decodes = np.asarray(self.decodes, np.int32)[:, None]
        fields = (
            self.tables[owner, at // self.page],
            at % self.page,
            self.tables[:rows],
            decodes,
            prompt,
            limits,
        )
        return PagedBatch(*(jnp.asarray(each, jnp.int32) for each in fields), kernel=kernel)

    def ragged(self) -> tuple[jax.Array, ...]:
        """Lengths, tables, ends of queries and number of sequences, for JAX's kernel."""
        ends = np.cumsum([0, *self.counts])
        fields = (self.lengths, self.tables, ends, [len(self.lengths)])
        return tuple(jnp.asarray(each, jnp.int32) for each in fields)


def spread(count: int, longest: int) -> tuple[int, ...]:
    """Lengths from half the longest to the longest, evenly."""
    return tuple(int(n) for n in np.linspace(longest // 2, longest, count))


def shapes_of(tree: Any, sharding: Any) -> Any:
    """Shapes and dtypes of arrays, as if they were sharded like this."""
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), tree
    )
