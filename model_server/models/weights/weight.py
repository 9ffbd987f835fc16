"""Weight declarations: shape, logical axes, checkpoint source and initialiser in one place.

A module of which a blueprint is made takes no memory; loading, sharding and the memory plan all
read these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.packed import HALF_BYTES, Packing
from model_server.kernels.cpu.tiles import ByteTiles
from model_server.models.weights.low_rank import AdapterRoom, LowRankFactor
from model_server.models.weights.quantization import AsStored, Quantization
from model_server.models.weights.quantized import Quantized, placeholder
from model_server.models.weights.sharding import (
    ONE_DEVICE,
    Layout,
    WeightPlacement,
    bytes_per_device,
)
from model_server.models.weights.source import WeightSource, source_of
from model_server.models.weights.tiled import InTiles, byte_form_of, tiled_placeholder


@dataclass(frozen=True, slots=True)
class WeightForm:
    """Dtype, layout and quantisation of a module's weights; families pass it through."""

    dtype: Any = jnp.bfloat16  # of matrices; vectors are float32
    layout: Layout = ONE_DEVICE
    quantization: Quantization | None = None  # of matrices
    adapters: AdapterRoom | None = None  # None: no room for any
    tiles: bool = False  # lay out matrices for the native CPU products
    whole: bool = False  # of a model that reads whole inputs: float32 is laid out, too

    @property
    def in_tiles(self) -> bool:
        """True if a matrix of this dtype may be laid out."""
        return self.tiles and (self.whole or jnp.dtype(self.dtype) != jnp.float32)


def weight(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    source: WeightSource | tuple[str, ...] = (),
    *,
    dtype: Any,
    spread: float | None = None,
    quantization: Quantization | None = None,
    layout: Layout = ONE_DEVICE,
    table: bool = False,
    low_rank: LowRankFactor | None = None,
    tiles: bool = False,
) -> nnx.Param:
    """Declare one weight.

    axes: a logical axis (embed, heads, ffw, vocab, experts) or None per dimension.
    source: checkpoint source; names are joined along the first dimension.
    spread: standard deviation of random weights; None: ones.
    quantization: decides whether the value is a `Quantized`, which multiplies as `layout` shards
    it; `table`: rows are vocabulary entries.
    low_rank: set for factors of adapters, which are zeros until an adapter fills its place.
    tiles: lays out a matrix for the native CPU products, if they take it.
    """
    if len(shape) != len(axes):
        raise ValueError(f"{len(shape)} dimensions but {len(axes)} logical axes")
    found = source_of(source)
    packing = quantization.packing_of(found, shape, table=table) if quantization else None
    value = _zeros(shape, axes, dtype, packing, layout, tiles)
    return nnx.Param(
        value,
        axes=axes,
        source=found,
        spread=spread,
        packing=packing,
        kept=isinstance(quantization, AsStored),
        left_plain=quantization is not None and packing is None,
        low_rank=low_rank,
    )


def _zeros(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: Any,
    packing: Packing | None,
    layout: Layout,
    tiles: bool,
) -> Any:
    zeros = jax.ShapeDtypeStruct if _SHAPES_ALONE.get() else jnp.zeros
    tiled = tiled_placeholder(shape, packing, dtype, zeros) if tiles else None
    if tiled is not None:
        return tiled
    if packing is None:
        return zeros(shape, dtype)
    bits = 4 if packing.kind in HALF_BYTES else 8
    place = WeightPlacement.of(layout, shape, axes, bits)
    return placeholder(shape, packing, dtype, place, zeros)


_SHAPES_ALONE: ContextVar[bool] = ContextVar("shapes_alone", default=False)


@dataclass(frozen=True, slots=True)
class Leaf:
    part: str  # values, scales or offsets if quantised, also units if in tiles, else ""
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...]

    @property
    def bits(self) -> int:
        return 4 if self.dtype == jnp.int4 else 8 * int(jnp.dtype(self.dtype).itemsize)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.bits // 8


@dataclass(frozen=True, slots=True)
class Declaration:
    """Arguments of one `weight` call, with its path in the module tree."""

    path: str  # layers.3.attention.qkv.kernel
    shape: tuple[int, ...]
    dtype: Any  # of computation
    axes: tuple[str | None, ...]
    source: WeightSource
    spread: float | None
    packing: Packing | None  # None: unquantised
    kept: bool  # packed as the checkpoint stores it, not quantised at load
    left_plain: bool  # quantising was requested, but its shape or checkpoint does not allow it
    low_rank: LowRankFactor | None  # of adapters; the base's checkpoint has none
    leaves: tuple[Leaf, ...]  # in the order of the module's leaves
    plain: tuple[Leaf, ...]  # as read, before they are laid out in tiles; else the same

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)

    def bytes_on(self, layout: Layout) -> int:
        """Return the bytes on a device of the layout."""
        return sum(
            bytes_per_device(
                each.shape, each.bits, layout.sharding(each.shape, each.axes, each.bits)
            )
            for each in self.leaves
        )

    @property
    def is_tiled(self) -> bool:
        return self.plain is not self.leaves


@dataclass(frozen=True)
class Blueprint:
    """A module without its weights: what to load, and how to assemble it."""

    declarations: tuple[Declaration, ...]  # in the order of the leaves
    _graph: Any
    _structure: Any

    def assemble(self, leaves: Sequence[jax.Array]) -> Any:
        """Build the module from its weights; int4 may be packed in bytes."""
        state = jax.tree.unflatten(self._structure, leaves)
        return nnx.merge(self._graph, jax.tree.map(_on_program, state, is_leaf=_is_quantized))

    @property
    def bytes(self) -> int:
        return sum(declaration.bytes for declaration in self.declarations)

    def bytes_on(self, layout: Layout) -> int:
        """Return the bytes on a device of the layout."""
        return sum(declaration.bytes_on(layout) for declaration in self.declarations)

    @cached_property
    def factors(self) -> tuple[int, ...]:
        """Indices of the leaves that hold factors of adapters."""
        held = [each.low_rank is not None for each in self.declarations for _ in each.leaves]
        return tuple(index for index, is_factor in enumerate(held) if is_factor)


def borrowed_weights(borrower: Blueprint, lender: Blueprint) -> dict[int, int]:
    """Return which of a module's weights are weights of another one: index by index there.

    They are of the same tensors, in the same form.
    """
    held = {_identity(each): index for index, each in enumerate(lender.declarations)}
    every = enumerate(borrower.declarations)
    return {index: held[_identity(each)] for index, each in every if _identity(each) in held}


def with_borrowed(
    borrower: Blueprint,
    borrowed: Mapping[int, int],
    own: Sequence[jax.Array],
    lender: Blueprint,
    held: Sequence[jax.Array],
) -> tuple[list[jax.Array], list[int]]:
    """Return all leaves of a module, and the indices of those that are the lender's.

    own: the other leaves, in order. held: all leaves of the lender.
    """
    theirs, left = _leaves_by_weight(lender, held), iter(own)
    leaves: list[jax.Array] = []
    indices: list[int] = []
    for index, weight in enumerate(borrower.declarations):
        if index in borrowed:
            found = theirs[borrowed[index]]
            indices += range(len(leaves), len(leaves) + len(found))
        else:
            found = [next(left) for _ in weight.leaves]
        leaves += found
    return leaves, indices


def _identity(weight: Declaration) -> Any:
    return weight.source, weight.shape, weight.axes, weight.packing, weight.kept, weight.leaves


def _leaves_by_weight(module: Blueprint, held: Sequence[jax.Array]) -> list[list[jax.Array]]:
    left = iter(held)
    return [[next(left) for _ in weight.leaves] for weight in module.declarations]


def _is_quantized(value: Any) -> bool:
    return isinstance(value, Quantized)


def _on_program(value: Any) -> Any:
    return value.on_program() if isinstance(value, Quantized) else value


def blueprint(build: Callable[[], nnx.Module]) -> Blueprint:
    """Collect the declarations of the module `build` returns, without allocating it.

    Its weights are shapes: tracing their zeros would take longer than all the rest.
    """
    mark = _SHAPES_ALONE.set(True)
    try:
        module = build()
    finally:
        _SHAPES_ALONE.reset(mark)
    declared = tuple(_declarations(nnx.state(module)))
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param):
            # Drop what differs between otherwise equal layers, so that they are traced once.
            node.set_metadata(
                source=None, packing=None, kept=False, left_plain=False, low_rank=None
            )
    graph, state = nnx.split(module)
    return Blueprint(declared, graph, jax.tree.structure(state))


def take_one_byte(module: nnx.Module) -> bool:
    """Let quantised weights in tiles multiply numbers of one byte; False: there are none."""
    params = [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Param)]
    quantised = [each for each in params if byte_form_of(each.get_value()) is not None]
    for each in quantised:
        each.set_value(each.get_value().taking_one_byte())
    return bool(quantised)


def _declarations(state: nnx.State) -> Iterator[Declaration]:
    for path, param in nnx.to_flat_state(state):
        meta, value = param.get_metadata(), param.get_value()
        whole = value.values if isinstance(value, Quantized) else value  # tiles have its shape
        leaves = tuple(_leaves(value, meta["axes"]))
        tiled = isinstance(value, InTiles)
        yield Declaration(
            path=".".join(map(str, path)),
            shape=tuple(whole.shape),
            dtype=value.dtype,
            axes=meta["axes"],
            source=meta["source"],
            spread=meta["spread"],
            packing=meta["packing"],
            kept=meta["kept"],
            left_plain=meta["left_plain"],
            low_rank=meta["low_rank"],
            leaves=leaves,
            plain=tuple(_plain(value, meta["axes"])) if tiled else leaves,
        )


def _leaves(value: Any, axes: tuple[str | None, ...]) -> Iterator[Leaf]:
    if isinstance(value, InTiles):
        parts = (
            value.values._asdict() if isinstance(value.values, ByteTiles) else {"": value.values}
        )
        for part, array in parts.items():
            if array is not None:
                yield Leaf(part, tuple(array.shape), array.dtype, (None,) * array.ndim)
        return
    if not isinstance(value, Quantized):
        yield Leaf("", tuple(value.shape), value.dtype, axes)
        return
    for part in ("values", "scales", "offsets"):
        if (array := getattr(value, part)) is not None:
            yield Leaf(part, tuple(array.shape), array.dtype, axes)


def _plain(value: InTiles, axes: tuple[str | None, ...]) -> Iterator[Leaf]:
    """Yield the leaves of a weight in tiles as a checkpoint gives them."""
    if (form := value.byte_form) is None:
        yield Leaf("", value.shape, value.dtype, axes)
        return
    *outer, inputs = value.shape
    yield Leaf("values", value.shape, jnp.int4 if form.bits == 4 else jnp.int8, axes)
    for part in ("scales", "offsets") if form.offset else ("scales",):
        yield Leaf(part, (*outer, inputs // form.block), jnp.float32, axes)


def leaf_shapes(blueprint: Blueprint, layout: Layout) -> list[jax.ShapeDtypeStruct]:
    """Return shapes, dtypes and shardings of the weight arrays."""
    return [
        jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=layout.sharding(leaf.shape, leaf.axes, leaf.bits)
        )
        for weight in blueprint.declarations
        for leaf in weight.leaves
    ]
