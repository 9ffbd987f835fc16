"""Steps of attention in small, for comparing a kernel with the reference: shapes, then numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels import reference
from model_server.kernels.paged import Kernel, PagedBatch
from model_server.kernels.pages import (
    CacheShape,
    LayerPages,
    Shapes,
    allocate,
    key_major_shapes,
    write,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One step on one layer: decode rows, each with a context, and blocks of prompts."""

    decodes: int
    blocks: int
    block: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int  # 0: the keys are the values too
    page: int
    columns: int  # of page tables
    softcap: float | None = None
    window: int | None = None
    dtype: str = "float32"
    sinks: bool = False
    chunk: int | None = None
    run: int = 0  # tokens of runs that see each other, in blocks; 0: none do

    @property
    def tokens(self) -> int:
        return self.decodes + self.blocks * self.block

    @property
    def pages(self) -> int:
        return (self.decodes + self.blocks) * self.columns

    @property
    def cache(self) -> CacheShape:
        return CacheShape(
            layers=1, kv_heads=self.kv_heads, key_dim=self.key_dim, value_dim=self.value_dim
        )

    @property
    def options(self) -> dict[str, Any]:
        fixed = {"scale": self.key_dim**-0.5, "softcap": self.softcap, "window": self.window}
        fixed |= {"chunk": self.chunk}
        return fixed | ({"sinks": sinks_of(self.heads)} if self.sinks else {})


def sinks_of(heads: int) -> jax.Array:
    """A score of each head: some far above those of the tokens, some far below."""
    return jnp.linspace(-4.0, 4.0, heads, dtype=jnp.float32)


def limits_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Cached tokens that decode rows and the queries of blocks see; of both the last is padding."""
    rng = np.random.default_rng(case.decodes * 100 + case.heads)
    reach = case.columns * case.page
    rows = rng.integers(1, reach + 1, size=(case.decodes, 1))
    ends = rng.integers(case.block, reach + 1, size=(case.blocks, 1))
    blocks = ends - case.block + 1 + np.arange(case.block)
    if case.decodes > 1:
        rows[-1] = 0
    if case.block > 2:
        blocks[-1:, -2:] = 0  # a prompt that ends within its block
    return rows.astype(np.int32), blocks.astype(np.int32)


def batch_of(case: Case, kernel: Kernel) -> PagedBatch:
    """Every sequence has its pages in an order of its own; padding goes to the scratch page."""
    rows, blocks = limits_of(case)
    order = 1 + np.random.default_rng(case.pages).permutation(case.pages)
    tables = order.reshape(-1, case.columns).astype(np.int32)
    owner = np.repeat(np.arange(len(tables)), [1] * case.decodes + [case.block] * case.blocks)
    seen = np.concatenate([rows.ravel(), blocks.ravel()])
    at = np.maximum(seen - 1, 0)
    return PagedBatch(
        pages=jnp.asarray(np.where(seen > 0, tables[owner, at // case.page], 0)),
        offsets=jnp.asarray(at % case.page),
        decode_tables=jnp.asarray(tables[: case.decodes]),
        decode_limits=jnp.asarray(rows),
        block_tables=jnp.asarray(tables[case.decodes :]),
        block_limits=jnp.asarray(blocks),
        kernel=kernel,
        block_ahead=jnp.asarray(ahead_of(case, blocks)) if case.run else None,
        least_run=case.run or 1,
    )


def ahead_of(case: Case, limits: np.ndarray) -> np.ndarray:
    """Runs one behind the other, with a token between them; the last may end behind its block."""
    at = limits - 1
    within = at % (case.run + 1)
    ahead = np.where(within < case.run, case.run - 1 - within, 0)
    fits = at + ahead < case.columns * case.page
    return np.where((limits > 0) & fits, ahead, 0).astype(np.int32)


def new_tokens(
    case: Case, seed: int = 0, count: int | None = None
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Queries, keys and values of one step, or of so many tokens."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(count or case.tokens, *shape)), jnp.float32)

    values = numbers(case.kv_heads, case.value_dim) if case.value_dim else None
    return numbers(case.heads, case.key_dim), numbers(case.kv_heads, case.key_dim), values


@partial(jax.jit, static_argnums=(0, 1, 2))
def filled(case: Case, shapes: Shapes, write: Callable[..., LayerPages]) -> LayerPages:
    """Pages full of the same numbers in any layout."""
    empty = allocate(case.cache, case.pages, case.page, jnp.dtype(case.dtype), shapes=shapes)[0]
    at = np.arange((case.pages + 1) * case.page)
    _, keys, values = new_tokens(case, seed=7, count=len(at))
    return write(empty, keys, values, jnp.asarray(at // case.page), jnp.asarray(at % case.page))


def attend(
    case: Case, batch: PagedBatch, layer: LayerPages, q: Any, k: Any, v: Any
) -> tuple[jax.Array, LayerPages]:
    """The step of this case."""
    return batch.attend(layer, q, k, v, **case.options)


attend_compiled = jax.jit(attend, static_argnums=0)


def reference_of(case: Case, batch: PagedBatch) -> tuple[jax.Array, LayerPages]:
    """What the step of this case has to give, pages with keys transposed."""
    plain = replace(batch, kernel=reference.KERNEL, split=None)
    return attend_compiled(case, plain, filled(case, key_major_shapes, write), *new_tokens(case))


def arguments(case: Case, kernel: Kernel, sharding: Any = None) -> tuple[Any, ...]:
    """Of `attend` as shapes alone, for lowering."""
    layer = kernel.shapes(case.cache, case.pages, case.page, jnp.dtype(case.dtype))
    of = (batch_of(case, kernel), layer, *new_tokens(case))
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), of)
