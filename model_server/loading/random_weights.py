"""Fills declared weights with random numbers that depend on the seed only, not on the sharding.

Each number follows from the seed, the name of the tensor it is part of and its position there, so a
process draws only what its own devices hold.

How a weight is split depends on the mesh (fused projections, copied KV heads); its values must not:
any region can be drawn without the rest of its weight.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from model_server.kernels.local_devices import OWN, beside, full, starts, whole
from model_server.loading.weights import Report, fill, in_tiles, placed
from model_server.models.weights.sharding import Layout, own_device
from model_server.models.weights.source import Joined, RepeatedGroups, WeightSource
from model_server.models.weights.weight import Declaration, Leaf

_SMALL = 2**16  # drawing fewer numbers than this takes less time than optimising the program
_UNOPTIMISED = {"xla_backend_optimization_level": 0}
# Standard deviation of random quantised values: small enough that few need clipping.
_SPREADS = {"int8": 32.0, "int4": 2.3, "float8_e4m3fn": 1.0, "float4_e2m1fn": 2.0}


def random_weights(
    declared: Sequence[Declaration], seed: int, report: Report, layout: Layout | None = None
) -> list[jax.Array]:
    over = layout or own_device()

    def draw_one(weight: Declaration) -> list[jax.Array]:
        if weight.is_tiled:
            drawn = {leaf: np.asarray(_leaf(weight, leaf, seed, over)) for leaf in weight.plain}
            tiles = in_tiles(weight, lambda: lambda leaf, region: drawn[leaf][region])
            return placed(weight, over, tiles)
        return [_leaf(weight, leaf, seed, over) for leaf in weight.leaves]

    drawn = fill(declared, draw_one, "drawing weights", report)
    return [leaf for leaves in drawn for leaf in leaves]


def _leaf(weight: Declaration, leaf: Leaf, seed: int, layout: Layout) -> jax.Array:
    sharding = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
    number = _constant(weight, leaf)
    if number is not None:
        return full(leaf.shape, number, leaf.dtype, sharding)
    draw = Draw(
        whole=leaf.shape,
        shape=sharding.shard_shape(leaf.shape),
        dtype=leaf.dtype,
        spread=_SPREADS[weight.packing.kind] if weight.packing else weight.spread or 0.0,
    )
    begins = np.asarray(starts(leaf.shape, sharding), np.uint32)
    parts = rows_of(weight.source, leaf.shape[0], weight.path)
    rows = [drawn_rows(parts, seed, begin, draw.shape[0]) for begin in begins[:, 0].tolist()]
    drawn = _program(draw, beside(sharding))(np.concatenate(rows), begins)
    return whole(drawn, leaf.shape, sharding)


def _constant(weight: Declaration, leaf: Leaf) -> float | None:
    """Return the value if all numbers of the array are the same, else None."""
    if leaf.part == "offsets":
        return 0
    if not weight.spread:
        return 1 if weight.spread is None else 0
    if leaf.part == "scales" and weight.packing is not None:
        return weight.spread / _SPREADS[weight.packing.kind]
    return None


@functools.cache
def _program(draw: Draw, own: NamedSharding) -> Callable[..., Any]:
    """Compile a program in which each local device draws its own part."""
    each = jax.shard_map(
        lambda rows, begins: draw.region(rows, begins[0]),
        mesh=own.mesh,
        in_specs=(PartitionSpec(OWN), PartitionSpec(OWN)),
        out_specs=PartitionSpec(OWN),
        check_vma=False,
    )
    # Decide by the whole weight, not the part: numbers must not depend on the sharding.
    small = math.prod(draw.whole) <= _SMALL
    return jax.jit(each, compiler_options=_UNOPTIMISED if small else None)


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows drawn as one array, then repeated group by group."""

    key: int  # of the draw, combined with the seed
    count: int  # before repetition
    group: int
    times: int


def rows_of(source: WeightSource, count: int, path: str) -> tuple[DrawnRows, ...]:
    """Parts of a weight of `count` rows, in order. `path` names a part without a source."""
    return tuple(_parts(source, count, path))


def _parts(source: WeightSource, count: int, path: str) -> Iterator[DrawnRows]:
    if isinstance(source, Joined) and source.sizes is not None:
        for part, size in zip(source.parts, source.sizes, strict=True):
            yield from _parts(part, size, path)
        return
    group, times = count, 1
    if isinstance(source, RepeatedGroups):
        source, group, times = source.part, source.size, source.times
    # repr() covers everything that makes up an expression.
    name = repr(source) if source.names else path
    yield DrawnRows(zlib.crc32(name.encode()), count // times, group, times)


_TILE = 128  # columns drawn from one key
_AT_ONCE = 2**18  # numbers per batch; larger batches are no faster and take more memory


def drawn_rows(rows: Sequence[DrawnRows], seed: int, start: int, count: int) -> np.ndarray:
    """u32[count, 3] for rows from `start`: two words of the key, and the number under it."""
    ends = np.cumsum([part.count * part.times for part in rows])
    at = np.arange(start, start + count)
    part = np.searchsorted(ends, at, side="right")
    inside = at - np.concatenate([[0], ends[:-1]])[part]
    group = np.asarray([each.group for each in rows])[part]
    times = np.asarray([each.times for each in rows])[part]
    number = inside // (group * times) * group + inside % group
    keys = np.stack([_key_words(seed, each.key) for each in rows])
    return np.concatenate([keys[part], number[:, None]], axis=1, dtype=np.uint32, casting="unsafe")


def _key_words(seed: int, part: int) -> np.ndarray:
    return np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(seed), part)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Draws any region of one shape from a weight; weights that are alike share it."""

    whole: tuple[int, ...]  # of the weight
    shape: tuple[int, ...]  # of the region
    dtype: Any
    spread: float

    def region(self, rows: jax.Array, begin: jax.Array) -> jax.Array:
        """Draw the region starting at `begin`, u32[dimensions]; rows: from `drawn_rows`."""
        lines, batch = math.prod(self._lines), max(1, _AT_ONCE // self.shape[-1])

        def line(number: jax.Array) -> jax.Array:
            row, *inner = jnp.unravel_index(number, self._lines)
            return self._columns(rows[row, :2], self._line(rows[row, 2], inner, begin), begin[-1])

        numbers = jnp.arange(lines, dtype=jnp.uint32)
        if lines <= batch:
            drawn = jax.vmap(line)(numbers)
        else:
            drawn = jax.lax.map(line, numbers, batch_size=batch)
        return drawn.reshape(self.shape).astype(self.dtype)

    @property
    def _lines(self) -> tuple[int, ...]:
        """Dimensions of the region before its columns; a vector is one column of rows."""
        return self.shape[:-1] or self.shape

    def _line(self, row: jax.Array, inner: Sequence[jax.Array], begin: jax.Array) -> jax.Array:
        """Index of a line among all those drawn from its key."""
        for size, index, start in zip(self.whole[1:], inner, begin[1:], strict=False):
            row = row * size + index.astype(jnp.uint32) + start
        return row

    def _columns(self, words: jax.Array, line: jax.Array, begin: jax.Array) -> jax.Array:
        """Columns of one line; each tile has its own key."""
        width, columns = (1, 1) if len(self.shape) == 1 else (self.shape[-1], self.whole[-1])
        tile = min(_TILE, columns)
        whole = width % tile == 0 or width == columns  # starts on a tile boundary
        first = 0 if width == columns else begin // tile
        tiles = line * -(-columns // tile) + first
        tiles += jnp.arange(-(-width // tile) + (not whole), dtype=jnp.uint32)
        key = jax.random.wrap_key_data(words)
        drawn = jax.vmap(lambda each: self._numbers(jax.random.fold_in(key, each), tile))(tiles)
        if width == drawn.size:
            return drawn.reshape(-1)
        return jax.lax.dynamic_slice(drawn.reshape(-1), (begin - first * tile,), (width,))

    def _numbers(self, key: jax.Array, count: int) -> jax.Array:
        if not jnp.issubdtype(self.dtype, jnp.integer):
            wide = jnp.bfloat16 if self.dtype.itemsize == 1 else self.dtype
            return (jax.random.normal(key, (count,), wide) * self.spread).astype(self.dtype)
        highest = 7 if self.dtype == jnp.int4 else 127
        drawn = jnp.round(jax.random.normal(key, (count,), jnp.bfloat16) * self.spread)
        # XLA:CPU writes single int4 numbers 40 times slower than bytes.
        return jnp.clip(drawn, -highest, highest).astype(jnp.int8)
