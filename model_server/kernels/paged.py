"""What one step's attention needs to know, and the one way into the kernels.

The same for every layer: models pass it through without looking inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from model_server.kernels.pages import LayerPages, write
from model_server.kernels.row_split import RowSplit

# q, pages of the layer, tables, limits -> attended; all equal to reference.paged_attention.
Kernel = Callable[..., jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the tokens of one flat batch live: D decode rows, then N blocks of C prompt tokens."""

    pages: jax.Array  # i32[T]: page that each new token is written to
    offsets: jax.Array  # i32[T]: its place in that page
    decode_tables: jax.Array  # i32[D, S/G]
    decode_limits: jax.Array  # i32[D, 1]: cached tokens each query sees, itself included
    block_tables: jax.Array  # i32[N, S/G]
    block_limits: jax.Array  # i32[N, C]
    kernel: Kernel = field(metadata={"static": True})
    split: RowSplit | None = field(default=None, metadata={"static": True})

    def divided(self, x: jax.Array) -> jax.Array:
        """[T, D] as its rows are to lie between layers."""
        return x if self.split is None else self.split.rows(x)

    def attend(
        self,
        layer: LayerPages,
        q: jax.Array,  # f32[T, H, Q]
        k: jax.Array,  # f32[T, K, Q]
        v: jax.Array | None,  # f32[T, K, W]; None: the keys are the values too
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
    ) -> tuple[jax.Array, LayerPages]:
        """Write the new keys and values, then attend to the cached ones: f32[T, H, W].

        window: how many tokens each query sees, itself included; None: all.
        """
        if self.split is not None:
            k, v = jax.tree.map(self.split.gathered, (k, v))
        layer = write(layer, k, v, self.pages, self.offsets)
        decodes = self.decode_tables.shape[0]

        def run(queries: jax.Array, tables: jax.Array, limits: jax.Array) -> jax.Array:
            if self.split is not None:
                queries, tables, limits = map(self.split.queries, (queries, tables, limits))
            attended = self.kernel(
                queries, layer, tables, limits, scale=scale, softcap=softcap, window=window
            )
            return attended.reshape(-1, q.shape[1], attended.shape[-1])

        parts = [run(q[:decodes, None], self.decode_tables, self.decode_limits)]
        if blocks := self.block_tables.shape[0]:
            queries = q[decodes:].reshape(blocks, -1, *q.shape[1:])
            parts.append(run(queries, self.block_tables, self.block_limits))
        return jnp.concatenate(parts), layer
