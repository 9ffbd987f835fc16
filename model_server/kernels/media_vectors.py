"""Vectors of images and sounds among the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class MediaVectors:
    """Vectors that take the places of tokens, and those that the first layers add there.

    Gathered once: a token below 0 stands for row `-1 - token` of a buffer.
    """

    here: jax.Array  # bool[T, 1]: tokens whose places they take
    rows: jax.Array  # f32[T, D * (1 + levels)]; arbitrary elsewhere
    levels: int = field(metadata={"static": True})  # first layers that add vectors of their own

    def placed(self, x: jax.Array) -> jax.Array:
        """Return f32[T, D] with the vectors in their places."""
        return jnp.where(self.here, self.rows[:, : x.shape[1]], x)

    def level(self, index: int) -> jax.Array:
        """f32[T, D]: added to the output of layer `index`; 0 elsewhere."""
        size = self.rows.shape[1] // (1 + self.levels)
        first = (1 + index) * size
        return jnp.where(self.here, self.rows[:, first : first + size], 0.0)


def vectors_of(tokens: jax.Array, buffer: jax.Array, levels: int = 0) -> MediaVectors:
    """Return the vectors of tokens i32[T] from a buffer f32[M, D * (1 + levels)]."""
    rows = buffer.at[jnp.maximum(-1 - tokens, 0)].get(mode="clip")
    return MediaVectors((tokens < 0)[:, None], rows.astype(jnp.float32), levels)
