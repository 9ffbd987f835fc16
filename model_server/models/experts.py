"""Experts: many small feed-forwards, of which each token uses a few.

Tokens are sorted by expert and cut into blocks of rows that share one; a loop over these blocks
reads only the experts that some token uses, each of them once where its tokens fit a block. There
is no capacity: no token is dropped, and none changes what another gets.

Milliseconds of a layer with E=64, k=8, D=F=512 in bfloat16 on two shared cores, for 1, 8, 32 and
256 tokens: 0.8, 6.4, 13 and 32; all experts for every token 132, 35, 41 and 200;
`jax.lax.ragged_dot` 144, 194, 150 and 884. With E=8, k=2: 0.2, 0.9, 1.6 and 4.8; 2.5, 1.4, 2.6 and
8.5; 4.5, 2.8, 6.2 and 29. Unrolling the loop is as fast and takes ten times as long to compile.

On a mesh every device runs the loop over the experts it holds, and the sums are added; where the
experts do not divide evenly, each device holds a part of every expert's width instead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from model_server.models.layers import Activation, Names, project
from model_server.models.quantized import Quantized
from model_server.models.routing import Routes
from model_server.models.sharding import spec_of
from model_server.models.source import Stacked, source_of
from model_server.models.weight import WeightForm, weight

Kernel = jax.Array | Quantized
_AXIS = "model"
_UP_AXES, _DOWN_AXES = ("experts", "ffw", "embed"), ("experts", "embed", "ffw")
_MOST_ROWS = 64  # of a block; more of them hold more air and are no faster


class Kernels(NamedTuple):
    """The weights of some experts, or of one."""

    gate: Kernel  # [E, F, D]
    up: Kernel  # [E, F, D]
    down: Kernel  # [E, D, F]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSources:
    """Where each expert's projections are in a checkpoint."""

    gate: Sequence[Names]
    up: Sequence[Names]
    down: Sequence[Names]

    @classmethod
    def hugging_face(
        cls, prefix: str, count: int, *, gate: str, up: str, down: str
    ) -> ExpertSources:
        """Projections of these names below `prefix` and the expert's number."""

        def of(part: str) -> list[Names]:
            return [(f"{prefix}.{expert}.{part}.weight",) for expert in range(count)]

        return cls(gate=of(gate), up=of(up), down=of(down))


class Experts(nnx.Module):
    """Gated feed-forwards; a token gets the weighted sum of those on its routes."""

    def __init__(
        self,
        embed: int,
        ffw: int,
        sources: ExpertSources,
        *,
        activation: Activation,
        form: WeightForm,
    ) -> None:
        count = len(sources.gate)

        def stacked(outputs: int, inputs: int, axes: Any, parts: Sequence[Names]) -> nnx.Param:
            return weight(
                (count, outputs, inputs),
                axes,
                Stacked(tuple(map(source_of, parts))),
                dtype=form.dtype,
                spread=0.02,
                quantization=form.quantization,
            )

        self.gate = stacked(ffw, embed, _UP_AXES, sources.gate)
        self.up = stacked(ffw, embed, _UP_AXES, sources.up)
        self.down = stacked(embed, ffw, _DOWN_AXES, sources.down)
        self.activation = activation
        self.shards = form.shards

    def __call__(self, x: jax.Array, routes: Routes) -> jax.Array:
        """f32[T, D]."""
        kernels = Kernels(*(part.get_value() for part in (self.gate, self.up, self.down)))
        if self.shards == 1:
            return in_blocks(x, routes, kernels, self.activation, 0, _count(kernels))
        return _on_mesh(x, routes, kernels, self.activation, self.shards)


class RoutedFeedForward(nnx.Module):
    """A router, its experts, and where there is one the feed-forward that every token uses."""

    def __init__(
        self, router: nnx.Module, experts: Experts, shared: nnx.Module | None = None
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared

    def __call__(self, x: jax.Array) -> jax.Array:
        routed = self.experts(x, self.router(x))
        return routed if self.shared is None else routed + self.shared(x)


def in_blocks(
    x: jax.Array,  # f32[T, D]
    routes: Routes,
    kernels: Kernels,  # of E experts
    activation: Activation,
    first: jax.Array | int,  # number of the first of them
    among: int,  # experts that routes may name
) -> jax.Array:
    """f32[T, D]: what these experts give each token; zeros for a token that uses none of them."""
    tokens, chosen = routes.experts.shape
    rows = _rows_of_a_block(tokens * chosen, among)
    plan = _plan(routes.experts.reshape(-1) - first, _count(kernels), rows)
    weights = routes.weights.reshape(-1)

    def one_block(block: jax.Array, out: jax.Array) -> jax.Array:
        expert, route, live = plan.block(block, rows)
        token = jnp.where(live, route // chosen, tokens)  # rows of air come from beyond the end
        mine = _one(kernels, expert)
        seen = x.at[token].get(mode="fill", fill_value=0)
        made = project(activation(project(seen, mine.gate)) * project(seen, mine.up), mine.down)
        counted = made * jnp.where(live, weights[route], 0.0)[:, None]
        return out.at[token].add(counted, mode="drop")

    return jax.lax.fori_loop(0, plan.blocks, one_block, jnp.zeros(x.shape, jnp.float32))


class _Plan(NamedTuple):
    """Routes sorted by expert, and the blocks that each expert's routes fill."""

    order: jax.Array  # i32[N]: routes, those of expert 0 first
    ends: jax.Array  # i32[E]: where each expert's routes end in that order
    sizes: jax.Array  # i32[E]
    last_blocks: jax.Array  # i32[E]: blocks up to and with each expert's

    @property
    def blocks(self) -> jax.Array:
        return self.last_blocks[-1]

    def block(self, number: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The block's expert; the route of each row, i32[rows]; and which rows have one."""
        expert = jnp.sum(self.last_blocks <= number)
        start, end = self.ends[expert] - self.sizes[expert], self.ends[expert]
        earlier = self.last_blocks[expert] - -(-self.sizes[expert] // rows)
        at = start + (number - earlier) * rows + jnp.arange(rows)
        return expert, self.order.at[at].get(mode="clip"), at < end


def _plan(experts: jax.Array, count: int, rows: int) -> _Plan:
    """experts: i32[N], those outside 0..count are somebody else's."""
    mine = jnp.where((experts >= 0) & (experts < count), experts, count)
    sizes = jnp.bincount(mine, length=count + 1)[:count].astype(jnp.int32)
    return _Plan(
        order=jnp.argsort(mine, stable=True),
        ends=jnp.cumsum(sizes),
        sizes=sizes,
        last_blocks=jnp.cumsum(-(-sizes // rows)),
    )


def _rows_of_a_block(routes: int, experts: int) -> int:
    """The power of two at or above twice the routes of an average expert."""
    rows = 1
    while rows * experts < 2 * routes and rows < _MOST_ROWS:
        rows *= 2
    return rows


def _one(kernels: Kernels, expert: jax.Array) -> Kernels:
    # Without the barrier XLA:CPU, which cannot slice bfloat16, widens all experts before the loop:
    # 60 ms instead of 1 for one token.
    held, expert = jax.lax.optimization_barrier((kernels, expert))
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, expert, 0, False), held)


def _count(kernels: Kernels) -> int:
    return jax.tree.leaves(kernels)[0].shape[0]


def _on_mesh(
    x: jax.Array, routes: Routes, kernels: Kernels, activation: Activation, shards: int
) -> jax.Array:
    """As `in_blocks` over all experts, every device on what it holds of them."""
    count, axis = _count(kernels), _divided(kernels, shards)
    if axis is None:  # every device computes everything
        return in_blocks(x, routes, kernels, activation, 0, count)
    mesh = jax.typeof(jax.tree.leaves(kernels)[0]).sharding.mesh
    assert not mesh.empty, "weights on several devices carry their mesh"

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), _specs(kernels, mesh)),
        out_specs=PartitionSpec(),
        axis_names={_AXIS},
        check_vma=False,
    )
    def each(x: jax.Array, routes: Routes, held: Kernels) -> jax.Array:
        first = jax.lax.axis_index(_AXIS) * _count(held) if axis == "experts" else 0
        return jax.lax.psum(in_blocks(x, routes, held, activation, first, count), _AXIS)

    return each(x, routes, kernels)


def _divided(kernels: Kernels, shards: int) -> str | None:
    """The logical axis that the devices share out; None where no device has whole parts."""
    if _count(kernels) % shards == 0:
        return "experts"
    widths = {array.shape[2] for array in jax.tree.leaves(kernels.down)} - {1}  # numbers, scales
    return None if any(width % shards for width in widths) else "ffw"


def _specs(kernels: Kernels, mesh: Any) -> Kernels:
    """How the model axis divides every array of the kernels."""

    def spec(axes: tuple[str, ...], array: jax.Array) -> PartitionSpec:
        found = spec_of(array.shape, axes, mesh)
        return PartitionSpec(*(axis if axis == _AXIS else None for axis in found))

    parts = zip(kernels, (_UP_AXES, _UP_AXES, _DOWN_AXES), strict=True)
    return Kernels(*(jax.tree.map(functools.partial(spec, axes), kernel) for kernel, axes in parts))
