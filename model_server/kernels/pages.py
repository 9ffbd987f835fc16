"""Page arrays of keys and values, or of states: layout, allocation and writing new tokens.

Page 0 is scratch: padding rows write there and it is never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.local_devices import full

# Largest values of quantised pages, which store a scale per head and token.
HIGHEST = {jnp.dtype("int8"): 127.0, jnp.dtype("float8_e4m3fn"): 448.0}


def kept_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype of hidden states beside pages of this one: float32, or bits of bfloat16.

    XLA on CPU would convert all pages of bfloat16 to write a few tokens; bits it writes in place.
    """
    return jnp.dtype(jnp.float32 if jnp.dtype(dtype) == jnp.float32 else jnp.uint16)


class LayerPages(NamedTuple):
    """Pages of one layer; int8 and float8 have a scale per head and token.

    Shapes are those of `key_major_shapes`; a kernel may use others, always with pages first.
    """

    keys: jax.Array  # [P + 1, K, Q, G]
    values: jax.Array | None  # [P + 1, K, G, W]; None: the keys double as values
    key_scales: jax.Array | None = None  # f32[P + 1, K, G]
    value_scales: jax.Array | None = None  # f32[P + 1, K, G]


@dataclass(frozen=True, slots=True)
class StateArray:
    """One f32 array of a recurrent layer's state (see `states`)."""

    shape: tuple[int, ...]  # for one sequence
    axis: str | None = None  # logical axis of its first dimension; None: replicated


class HeadShape(NamedTuple):
    """Shape of a cached token in layers that have another than the rest."""

    kv_heads: int
    key_dim: int
    value_dim: int
    every: int = 1  # tokens for which one is cached: the last of them says its page


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Shape of one cached token, in every layer that attends and has no other; and of states."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int  # 0: the keys double as values
    axis: str | None = None  # logical axis of the heads; None: replicated
    # Queries choose the tokens that they attend to: TPUs and CPUs have kernels for it.
    chosen: bool = False
    plain: bool = False  # plain XLA computes it on TPUs, too
    query_axis: str | None = None  # of the query heads, which may be sharded when KV heads are not
    # What each layer keeps in place of keys and values, () for nothing; None: it attends. (): all
    # layers attend.
    states: tuple[tuple[StateArray, ...] | None, ...] = ()
    # Layer, counted as in the whole model, to whose keys and values each attends in place of its
    # own; None: to its own. (): all to their own. It keeps what `others` says of it, or nothing.
    lenders: tuple[int | None, ...] = ()
    others: tuple[HeadShape | None, ...] = ()  # of each layer; None: as above; (): all as above
    # Numbers of a hidden state that is kept of each token, in place of a last layer; 0: none
    kept: int = 0

    def layer(
        self, index: int, pages: int, page_size: int, dtype: jnp.dtype, shapes: Shapes
    ) -> Pages:
        """Shapes of one layer's arrays on all devices, the scratch page included."""
        if (state := self.state_of(index)) is not None:
            return tuple(jax.ShapeDtypeStruct((pages + 1, *a.shape), jnp.float32) for a in state)
        if self.is_kept(index):
            return (jax.ShapeDtypeStruct((pages + 1, page_size, self.kept), kept_dtype(dtype)),)
        other = self.others[index] if self.others else None
        if other is None:
            return shapes(self, pages, page_size, dtype)
        heads, keys, values, every = other
        made = replace(self, kv_heads=heads, key_dim=keys, value_dim=values)
        return shapes(made, pages, -(-page_size // every), dtype)

    def axes(self, index: int) -> tuple[str | None, ...]:
        """Logical axis of the second dimension of each array of a layer's state."""
        if self.is_kept(index):
            return (None,)
        return tuple(array.axis for array in self.state_of(index) or ())

    def is_kept(self, index: int) -> bool:
        """True if hidden states lie in this place: [P + 1, G, kept]."""
        return bool(self.kept) and index == self.layers - 1

    def state_of(self, index: int) -> tuple[StateArray, ...] | None:
        """Arrays that a layer keeps in place of keys and values of its own; None: it has some."""
        if self.lenders and self.lenders[index] is not None:
            return None if self.others and self.others[index] is not None else ()
        return self.states[index] if self.states else None

    def part(self, first: int, end: int) -> CacheShape:
        """Return the shape of these layers alone."""
        return replace(
            self,
            layers=end - first,
            states=self.states[first:end],
            lenders=self.lenders[first:end],
            others=self.others[first:end],
        )

    def bytes_by_layer(
        self, page_size: int, dtype: jnp.dtype, shapes: Shapes | None = None
    ) -> list[int]:
        """Bytes of one page, or of one state, of each layer over all devices."""
        made = shapes or key_major_shapes
        layers = (self.layer(index, 0, page_size, dtype, made) for index in range(self.layers))
        return [
            sum(math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(layer))
            for layer in layers
        ]


Pages = Any  # of one layer: LayerPages, or the arrays [P + 1, ...] of its states
# cache, pages, page size, dtype -> one layer's arrays as global ShapeDtypeStructs
Shapes = Callable[[CacheShape, int, int, jnp.dtype], LayerPages]


def key_major_shapes(cache: CacheShape, pages: int, page_size: int, dtype: jnp.dtype) -> LayerPages:
    """Keys transposed: on a CPU both products of attention then run along rows."""
    heads = (pages + 1, cache.kv_heads)
    keys = (*heads, cache.key_dim, page_size)
    values = (*heads, page_size, cache.value_dim)
    return page_arrays(cache, keys, values, (*heads, page_size), dtype)


def page_arrays(
    cache: CacheShape,
    keys: tuple[int, ...],
    values: tuple[int, ...],
    scales: tuple[int, ...],
    dtype: jnp.dtype,
) -> LayerPages:
    """The arrays of these shapes that the cache needs; scales if the dtype needs them."""

    def array(shape: tuple[int, ...], of: Any, there: bool) -> Any:
        return jax.ShapeDtypeStruct(shape, of) if there else None

    scaled, valued = dtype in HIGHEST, bool(cache.value_dim)
    return LayerPages(
        keys=array(keys, dtype, True),
        values=array(values, dtype, valued),
        key_scales=array(scales, jnp.float32, scaled),
        value_scales=array(scales, jnp.float32, scaled and valued),
    )


Where = Callable[[str | None], jax.sharding.Sharding]  # by logical axis, as `Layout.pages`


def allocate(
    cache: CacheShape,
    pages: int | tuple[int, ...],
    page_size: int,
    dtype: jnp.dtype,
    where: Where | None = None,
    shapes: Shapes = key_major_shapes,
    blank: Callable[[LayerPages, jax.sharding.Sharding | None], LayerPages] | None = None,
) -> tuple[Pages, ...]:
    """Zeroed pages for every layer, including the scratch page, created in place.

    pages: of each layer, or the same for all. blank: makes a layer's keys and values instead.
    """

    def zeros(of: jax.ShapeDtypeStruct, axis: str | None) -> jax.Array:
        if where is None:
            return jnp.zeros(of.shape, of.dtype)
        return full(of.shape, 0, of.dtype, where(axis))

    def made(index: int, count: int) -> Pages:
        layer = cache.layer(index, count, page_size, jnp.dtype(dtype), shapes)
        if not isinstance(layer, LayerPages):
            return tuple(map(zeros, layer, cache.axes(index)))
        if blank is not None:
            return blank(layer, where and where(cache.axis))
        return jax.tree.map(lambda of: zeros(of, cache.axis), layer)

    each = (pages,) * cache.layers if isinstance(pages, int) else pages
    return tuple(made(index, count) for index, count in enumerate(each))


def write(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array | None,  # [T, K, W]; None: the keys double as values
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place if the pages are donated."""
    small, scales = stored(keys, layer.keys.dtype)
    layer = layer._replace(
        keys=layer.keys.at[pages, :, :, offsets].set(small, mode="promise_in_bounds"),
        key_scales=_with_scales(layer.key_scales, scales, pages, offsets),
    )
    if layer.values is None or values is None:
        return layer
    small, scales = stored(values, layer.values.dtype)
    return layer._replace(
        values=layer.values.at[pages, :, offsets].set(small, mode="promise_in_bounds"),
        value_scales=_with_scales(layer.value_scales, scales, pages, offsets),
    )


def overwrite(held: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
    """Return held[P, ...] with rows[N, ...] at index i32[N]."""
    return held.at[index].set(rows, mode="promise_in_bounds")


Overwrite = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def copy_pages(
    layers: tuple[LayerPages, ...], copies: jax.Array, *, write: Overwrite = overwrite
) -> tuple[LayerPages, ...]:
    """Overwrite page `copies[n, 1]` with page `copies[n, 0]`, for i32[N, 2], in every layer.

    All pages are read before any is written.
    """

    def copied(held: jax.Array) -> jax.Array:
        taken = held.at[copies[:, 0]].get(mode="promise_in_bounds")
        return write(held, copies[:, 1], taken)

    return jax.tree.map(copied, layers)


def copy_pages_apart(
    layers: tuple[LayerPages, ...],
    copies: jax.Array,
    *,
    window_layers: tuple[bool, ...],
    write: Overwrite = overwrite,
) -> tuple[LayerPages, ...]:
    """As `copy_pages`, but in window layers by the last two of each `copies`, i32[N, 4]."""
    of = {False: copies[:, :2], True: copies[:, 2:]}
    pairs = zip(layers, window_layers, strict=True)
    return tuple(
        copied for layer, its in pairs for copied in copy_pages((layer,), of[its], write=write)
    )


def stored(numbers: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Quantise [T, K, Q] for the pages; returns values and scales f32[T, K]."""
    if dtype not in HIGHEST:
        return numbers.astype(dtype), jnp.ones(numbers.shape[:2], jnp.float32)
    scales = jnp.maximum(jnp.abs(numbers).max(-1), 1e-30) / HIGHEST[dtype]
    scaled = numbers / scales[..., None]
    return (jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), scales


def _with_scales(
    held: jax.Array | None, scales: jax.Array, pages: jax.Array, offsets: jax.Array
) -> jax.Array | None:
    if held is None:
        return None
    return held.at[pages, :, offsets].set(scales, mode="promise_in_bounds")
