"""Copies KV pages out of the pool and into it, with programs compiled before the first step.

Pages move in blocks of 1, 2, 4, ... pages, with all layers of a block in one array, so any number
of pages is a few arrays, without padding and with few programs. Nothing here communicates across
devices or hosts: each keeps its own heads.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.draft_model.draft_program import program_name
from model_server.engine.step_program import StepProgram
from model_server.kernels.pages import LayerPages, Overwrite

Block = LayerPages  # with a leading axis of layers: [L, n, K, ...]


def block_sizes(count: int) -> list[int]:
    """Return the pages of each block, largest first: 13 is 8, 4 and 1."""
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def block_shape(layers: Sequence[Any], size: int) -> Block:
    def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = (len(layers), size, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=_stacked(leaf.sharding))

    return jax.tree.map(stacked, layers[0])


def _stacked(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return sharding


class PageCopies:
    """Compiled copies for one pool, in blocks up to the pages of a whole sequence."""

    def __init__(
        self, program: StepProgram, most: int, *, gives: bool, takes: bool, draft: bool = False
    ) -> None:
        """most: pages of one sequence. gives, takes: whether pages are offered, and fetched.

        draft: the pool of a draft model. Tokens are put beside the pages of the model itself.
        """
        self.gives = gives
        self.takes = takes
        self._puts = takes and not draft
        self._named = program_name if draft else str
        self._overwrite = program.overwrite
        self._layers = program.pages  # shapes, as are the last tokens
        assert program.state is not None, "a pipeline stage hands nothing off"
        self._last_tokens = program.state.last_tokens
        self._everywhere = program.everywhere
        self._sizes = block_sizes((1 << most.bit_length()) - 1)
        self._reads: dict[int, Any] = {}
        self._writes: dict[int, Any] = {}
        self._put: Any = None

    def compile(self, programs: Programs = COMPILED_HERE) -> None:
        for size in self._sizes:
            if self.gives:
                self._reads[size] = programs.compiled(
                    self._named(f"read {size} pages"), functools.partial(self._lower_read, size)
                )
            if self.takes:
                self._writes[size] = programs.compiled(
                    self._named(f"write {size} pages"), functools.partial(self._lower_write, size)
                )
        if self._puts:
            self._put = programs.compiled("put a token", self._lower_put)

    @property
    def count(self) -> int:
        return len(self._sizes) * (self.gives + self.takes) + self._puts

    def warm(self, layers: Any, last_tokens: jax.Array) -> tuple[Any, jax.Array]:
        """Run each program once, on scratch; returns the arrays that replace the input."""
        scratch = (0,) * sum(self._sizes)
        blocks = self.read(layers, scratch) if self.gives else []
        if self.takes:
            layers = self.write(layers, blocks or self._empty(len(scratch)), scratch)
        if self._puts:
            last_tokens = self.put_token(last_tokens, last_tokens.size - 1, 0)
        jax.block_until_ready((blocks, layers, last_tokens))
        return layers, last_tokens

    def _lower_read(self, size: int) -> jax.stages.Lowered:
        block = block_shape(self._layers, size)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, block)
        return jax.jit(_read, out_shardings=shardings).lower(self._layers, self._vector((size,)))

    def _lower_write(self, size: int) -> jax.stages.Lowered:
        block = block_shape(self._layers, size)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self._layers)
        written = functools.partial(_write, write=self._overwrite)
        write = jax.jit(written, donate_argnums=0, out_shardings=shardings)
        return write.lower(self._layers, block, self._vector((size,)))

    def _lower_put(self) -> jax.stages.Lowered:
        put = jax.jit(_put, donate_argnums=0, out_shardings=self._everywhere)
        return put.lower(self._last_tokens, self._vector((2,)))

    def read(self, layers: Any, pages: Sequence[int]) -> list[Block]:
        at, blocks = 0, []
        for size in block_sizes(len(pages)):
            blocks.append(self._reads[size](layers, _index(pages[at : at + size])))
            at += size
        return blocks

    def write(self, layers: Any, blocks: Sequence[Block], pages: Sequence[int]) -> Any:
        """Return the pool with these pages replaced; the input pool is donated."""
        at = 0
        for block, size in zip(blocks, block_sizes(len(pages)), strict=True):
            layers = self._writes[size](layers, block, _index(pages[at : at + size]))
            at += size
        return layers

    def _empty(self, count: int) -> list[Block]:
        """Return blocks for this many pages, with arbitrary contents."""
        return [
            jax.tree.map(_zeros, block_shape(self._layers, size)) for size in block_sizes(count)
        ]

    def put_token(self, last_tokens: jax.Array, slot: int, token: int) -> jax.Array:
        """Return the last tokens with one replaced; the input is donated."""
        return self._put(last_tokens, _index((slot, token)))

    def _vector(self, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._everywhere)


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Create zeros on each device without communication."""
    part = np.zeros(shape.sharding.shard_shape(shape.shape), shape.dtype)
    return jax.make_array_from_callback(shape.shape, shape.sharding, lambda _: part)


def _index(numbers: Sequence[int]) -> np.ndarray:
    return np.asarray(numbers, np.int32)


def _read(layers: tuple[LayerPages, ...], index: jax.Array) -> Block:
    return jax.tree.map(
        lambda *held: jnp.stack([leaf.at[index].get(mode="promise_in_bounds") for leaf in held]),
        *layers,
    )


def _write(
    layers: tuple[LayerPages, ...], block: Block, index: jax.Array, *, write: Overwrite
) -> Any:
    def replaced(number: int, layer: LayerPages) -> LayerPages:
        return jax.tree.map(lambda held, new: write(held, index, new[number]), layer, block)

    return tuple(replaced(number, layer) for number, layer in enumerate(layers))


def _put(last_tokens: jax.Array, pair: jax.Array) -> jax.Array:
    return last_tokens.at[pair[0]].set(pair[1])
