"""Draft tokens of a step, on the device: what each row must know of the rows before it.

A row that tries a draft token chooses the token behind it. Penalties and bad words count the draft
tokens before that place as if they had been chosen. Afterwards the slot keeps the tokens up to the
first row whose draft token was wrong, so its state is what it would be without draft tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class RowDrafts(NamedTuple):
    """Draft tokens of R rows, of which those of one slot follow each other."""

    token: jax.Array  # i32[R], the row's input if that is a draft token; -1: it is known
    slot: jax.Array  # i32[R]
    position: jax.Array  # i32[R], of the token to choose

    @property
    def there(self) -> jax.Array:
        """bool[R]: the rows that try one."""
        return self.token >= 0

    @property
    def before(self) -> jax.Array:
        """bool[R, R]: true at [r, q] if row q's draft token is before the token that r chooses."""
        ours = self.slot[:, None] == self.slot[None, :]
        return ours & self.there[None, :] & (self.position[None, :] <= self.position[:, None])

    def taken(self, chosen: jax.Array) -> jax.Array:
        """bool[R]: the rows whose draft token and all before it are right. chosen: i32[R]."""
        follows = (self.slot[:, None] == self.slot[None, :]) & (
            self.position[:, None] == self.position[None, :] + 1
        )
        right = (follows & (self.token[:, None] == chosen[None, :])).any(-1)
        wrong = self.there & ~right
        return ~(self.before & wrong[None, :]).any(-1)

    def newest(self, taken: jax.Array) -> jax.Array:
        """bool[R]: of the rows of a slot that are taken, the last one."""
        later = (self.slot[:, None] == self.slot[None, :]) & (
            self.position[None, :] > self.position[:, None]
        )
        return taken & ~(later & taken[None, :]).any(-1)

    def times(self, chosen: jax.Array, taken: jax.Array) -> jax.Array:
        """i32[R]: how often rows before it, which are taken, chose the token of a row."""
        ours = self.slot[:, None] == self.slot[None, :]
        earlier = self.position[None, :] < self.position[:, None]
        same = chosen[:, None] == chosen[None, :]
        return (ours & earlier & same & taken[None, :]).sum(-1, dtype=jnp.int32)

    def counted(self, counts: jax.Array, step: int, most: int) -> jax.Array:
        """Return counts i32[R, V] with `step` more for each draft token before; `most` at most."""
        row = lax.broadcasted_iota(jnp.int32, self.before.shape, 0)

        def add(counts: jax.Array) -> jax.Array:
            at = jnp.where(self.before, self.token[None, :], counts.shape[1])
            more = counts.at[row, at].add(step, mode="drop")
            # The last bits below a step are no count.
            return jnp.minimum(more, most // step * step + counts % step)

        return lax.cond(self.there.any(), add, lambda counts: counts, counts)

    def behind(self, recent: jax.Array) -> jax.Array:
        """Return the last tokens i32[R, M] of each row's answer, its draft tokens the newest."""
        size = recent.shape[1]
        moved = self.before.sum(-1, dtype=jnp.int32)[:, None]  # i32[R, 1]
        place = jnp.arange(size, dtype=jnp.int32)[None, :]
        held = jnp.take_along_axis(recent, jnp.minimum(place + moved, size - 1), axis=1)
        at = self.position[:, None] - (size - 1 - place)  # of the row that tries it, i32[R, M]
        tries = self.before[:, None, :] & (self.position[None, None, :] == at[:, :, None])
        drafted = jnp.where(tries, self.token[None, None, :], 0).sum(-1)
        return jnp.where(place + moved < size, held, drafted)
