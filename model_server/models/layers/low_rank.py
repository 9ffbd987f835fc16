"""The products of the adapters of a batch: each row is multiplied by its own adapter's factors.

Rows of all adapters share two dense products, over the factors of every place side by side; between
them a mask keeps each row's own. That costs places * r * (in + out) multiplications per row, little
beside in * out in the models that are adapted. On a CPU, gathering factors per row (`ragged_dot`,
batched products) took five to twenty times as long as this, for 16 adapters in 32 rows. The native
CPU kernels need neither: each row reads its own adapter's factors.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from model_server.kernels.cpu.rows import add_low_rank
from model_server.models.weights.low_rank import LowRankFactor, LowRankPair
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
        self.native = form.tiles and form.dtype == jnp.bfloat16

        def factor(
            shape: tuple[int, int], along: tuple[Axis, Axis], *pairs: LowRankPair, down: bool
        ) -> nnx.Param:
            filled = LowRankFactor(tuple(pairs), down, room.rank)
            whole = (room.places, *shape)
            return weight(whole, (None, *along), dtype=form.dtype, spread=0.0, low_rank=filled)

        rows = len(pairs) * room.rank
        self.down = factor((rows, inputs), (None, axes[0][1]), *pairs, down=True)
        self.ups = nnx.List(
            [
                factor((room.rank, size), (None, axes[index][0]), pairs[index], down=False)
                for index, size in enumerate(outputs)
            ]
        )
        self.chosen: nnx.Variable[jax.Array] | None = nnx.data(None)

    def __call__(self, x: jax.Array, made: list[jax.Array]) -> list[jax.Array]:
        """Add the product of each row's adapter, if any row has one.

        x: f32[T, in]. made: f32[T, out] of each projection, without adapters; the native kernels
        also take one of them all, side by side.
        """
        if self.chosen is None:
            return made
        adapters = self.chosen[...]
        if self.native:
            return add_low_rank(x, adapters, self.down[...], [up[...] for up in self.ups], made)
        # bool[T, places]
        chosen = adapters[:, None] == jnp.arange(1, self.places + 1, dtype=jnp.int32)[None]
        return lax.cond(jnp.any(chosen), self._added, lambda *given: given[1], x, made, chosen)

    def _added(self, x: jax.Array, made: list[jax.Array], chosen: jax.Array) -> list[jax.Array]:
        count, down = len(made), self.down[...]
        inner = _dot(x.astype(down.dtype), down.reshape(-1, down.shape[-1]), 1)
        inner = inner.reshape(len(x), self.places, count, self.rank)
        # Not a product with the mask: another adapter's factors may overflow on this row.
        inner = jnp.where(chosen[:, :, None, None], inner, 0).astype(down.dtype)
        added: list[jax.Array] = []
        for index, up in enumerate(self.ups):
            part = inner[:, :, index].reshape(len(x), -1)
            added.append(made[index] + _dot(part, up[...].reshape(part.shape[1], -1), 0))
        return added


def _dot(x: jax.Array, factors: jax.Array, axis: int) -> jax.Array:
    return lax.dot_general(
        x, factors, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32
    )


def choose_adapters(model: nnx.Module, adapters: jax.Array) -> None:
    """Set the adapter of each row of the next call. adapters: i32[T], from 1 on; 0: none."""
    for _, node in nnx.iter_graph(model):
        if isinstance(node, LowRank):
            node.chosen = nnx.Variable(adapters)
