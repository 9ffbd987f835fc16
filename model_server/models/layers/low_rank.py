"""The products of the adapters of a batch: each row is multiplied by its own adapter's factors.

Rows of all adapters share two dense products, over the factors of every place side by side; between
them a mask keeps each row's own. That costs places * r * (in + out) multiplications per row, little
beside in * out in the models that are adapted. On a CPU, gathering factors per row (`ragged_dot`,
batched products) took five to twenty times as long as this, for 16 adapters in 32 rows. The native
CPU kernels for bfloat16 need neither: each row reads its own adapter's factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from model_server.kernels.cpu.rows import add_low_rank
from model_server.kernels.cpu.tiles import dense_product
from model_server.models.weights.low_rank import FactorPart, LowRankFactor, LowRankPair
from model_server.models.weights.weight import WeightForm, weight

Axis = str | None


class LowRank(nnx.Module):
    """Factors of every adapter for projections of one input, on the devices of their weights."""

    def __init__(
        self,
        outputs: Sequence[int],
        inputs: int,
        axes: Sequence[tuple[Axis, Axis]],
        pairs: Sequence[LowRankPair],
        form: WeightForm,
    ) -> None:
        room = form.adapters
        assert room is not None, "only a model with room for adapters has factors"
        self.places, self.rank = room.places, room.rank
        self.tiles = form.tiles  # the native kernels multiply
        self.native = form.tiles and form.dtype == jnp.bfloat16

        def factor(
            part: FactorPart,
            shape: tuple[int, ...],
            along: tuple[Axis, ...],
            *pairs: LowRankPair,
            dtype: Any = form.dtype,
        ) -> nnx.Param:
            filled = LowRankFactor(tuple(pairs), part, room.rank)
            whole = (room.places, *shape)
            return weight(whole, (None, *along), dtype=dtype, spread=0.0, low_rank=filled)

        rows = len(pairs) * room.rank
        self.down = factor(FactorPart.DOWN, (rows, inputs), (None, axes[0][1]), *pairs)
        ups, gains = [
            [
                factor(part, (*front, size), (*(None for _ in front), axes[i][0]), pairs[i], **kind)
                for i, size in enumerate(outputs)
            ]
            for part, front, kind in (
                (FactorPart.UP, (room.rank,), {}),
                (FactorPart.GAIN, (), {"dtype": jnp.float32}),
            )
        ]
        self.ups, self.gains = nnx.List(ups), nnx.List(gains)
        self.chosen: nnx.Variable[jax.Array] | None = nnx.data(None)

    def __call__(self, x: jax.Array, made: list[jax.Array]) -> list[jax.Array]:
        """Apply each row's adapter, if any row has one.

        x: f32[T, in]. made: f32[T, out] of each projection, or one of them all side by side,
        without adapters and without biases, which gains leave alone.
        """
        if self.chosen is None:
            return made
        adapters = self.chosen[...]
        if self.native:
            scaled = lax.cond(self._any_gain(adapters), self._scaled, _as_given, made, adapters)
            ups = [up[...] for up in self.ups]
            return add_low_rank(x, adapters, self.down[...], ups, scaled)
        return lax.cond(jnp.any(adapters > 0), self._applied, _as_given, made, adapters, x)

    def _any_gain(self, adapters: jax.Array) -> jax.Array:
        """Return True if a row's adapter has gains, whose first number then is not zero."""
        first = sum(jnp.abs(gain[...][:, 0]) for gain in self.gains)
        return jnp.any(_of_rows(jnp.asarray(first)[:, None], adapters) > 0)

    def _scaled(self, made: list[jax.Array], adapters: jax.Array) -> list[jax.Array]:
        gains = [_of_rows(gain[...], adapters) for gain in self.gains]
        return [y + y * gain for y, gain in zip(made, _as_made(gains, made), strict=True)]

    def _applied(self, made: list[jax.Array], adapters: jax.Array, x: jax.Array) -> list[jax.Array]:
        places = jnp.arange(1, self.places + 1, dtype=jnp.int32)
        chosen = adapters[:, None] == places[None]  # bool[T, places]
        count, down = len(self.ups), self.down[...]
        inner = self._product(x.astype(down.dtype), down.reshape(-1, down.shape[-1]), 1)
        inner = inner.reshape(len(x), self.places, count, self.rank)
        # Not a product with the mask: another adapter's factors may overflow on this row.
        inner = jnp.where(chosen[:, :, None, None], inner, 0).astype(down.dtype)
        added: list[jax.Array] = []
        for index, up in enumerate(self.ups):
            part = inner[:, :, index].reshape(len(x), -1)
            added.append(self._product(part, up[...].reshape(part.shape[1], -1), 0))
        scaled = self._scaled(made, adapters)
        return [y + more for y, more in zip(scaled, _as_made(added, made), strict=True)]

    def _product(self, x: jax.Array, factors: jax.Array, axis: int) -> jax.Array:
        """f32[T, N]: x [T, K] times factors whose axis is K."""
        if self.tiles:
            rows = factors if axis == 1 else factors.T
            return dense_product(x[:, None], rows[None])[:, 0]
        how = (((1,), (axis,)), ((), ()))
        return lax.dot_general(x, factors, how, preferred_element_type=jnp.float32)


def _as_given(made: list[jax.Array], *_: jax.Array) -> list[jax.Array]:
    return made


def _of_rows(held: jax.Array, adapters: jax.Array) -> jax.Array:
    """Return each row's numbers of [places, n]: f32[T, n], zeros for a row without an adapter."""
    found = held.at[adapters - 1].get(mode="clip")
    return jnp.where(adapters[:, None] > 0, found, 0.0)


def _as_made(each: list[jax.Array], made: list[jax.Array]) -> list[jax.Array]:
    """Return numbers of each projection as the products lie: apart, or all side by side."""
    return each if len(each) == len(made) else [jnp.concatenate(each, axis=-1)]


def choose_adapters(model: nnx.Module, adapters: jax.Array) -> None:
    """Set the adapter of each row of the next call. adapters: i32[T], from 1 on; 0: none."""
    for _, node in nnx.iter_graph(model):
        if isinstance(node, LowRank):
            node.chosen = nnx.Variable(adapters)
