"""Pages of one host's runner that leave for other servers and come from them, between its steps.

A draft model's pages travel with the model's own. The server that computes a prompt has computed
the draft model's part of it as well, in the same steps, so draft tokens after a handoff are as
good as after a prompt that was computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from model_server.disaggregation.disaggregation import Transfers
from model_server.disaggregation.handed_pages import PageCount, PageNumbers
from model_server.disaggregation.layer_set import Block, LayerSet, block_sizes, layer_sets
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.paging.window_pages import most_window_pages_seen
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.draft_program import program_name
from model_server.engine.running.ops import (
    DONE,
    DropPages,
    ExportPages,
    FetchPages,
    ImportPages,
    Later,
    Op,
    Pending,
)
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.engine.step_program import StepProgram
from model_server.kernels.pages import Overwrite, Pages
from sax.errors import Unavailable
from sax.types import Progress

Layers = tuple[Pages, ...]


class PageCopies:
    """Compiled copies out of one pool and into it, in blocks up to the pages of a whole sequence.

    Nothing here communicates across devices or hosts: each keeps its own heads.
    """

    def __init__(
        self, program: StepProgram, *, gives: bool, takes: bool, draft: bool = False
    ) -> None:
        """gives, takes: whether pages are offered, and fetched.

        draft: the pool of a draft model. Tokens are put beside the pages of the model itself.
        """
        named = program_name if draft else str
        self.gives = gives
        self.takes = takes
        self._puts = takes and not draft
        assert program.state is not None, "a pipeline stage hands nothing off"
        self._last_tokens = program.state.last_tokens
        self._everywhere = program.everywhere
        self._sets = [
            _SetCopies(each, program, named, gives=gives, takes=takes)
            for each in layer_sets(program.pages, program.window_layers)
        ]
        self._put: Any = None

    def compile(self, programs: Programs = COMPILED_HERE) -> None:
        for each in self._sets:
            each.compile(programs)
        if self._puts:
            self._put = programs.compiled("put a token", self._lower_put)

    @property
    def count(self) -> int:
        return sum(each.count for each in self._sets) + self._puts

    def warm(self, pool: Layers, last_tokens: jax.Array) -> tuple[Layers, jax.Array]:
        """Run each program once, on scratch; returns the arrays that replace the input."""
        for each in self._sets:
            pool = each.warm(pool)
        if self._puts:
            last_tokens = self.put_token(last_tokens, last_tokens.size - 1, 0)
        jax.block_until_ready((pool, last_tokens))
        return pool, last_tokens

    def read(self, pool: Layers, numbers: PageNumbers) -> list[Block]:
        return [block for each in self._sets for block in each.read(pool, each.of(numbers))]

    def write(self, pool: Layers, blocks: Sequence[Block], numbers: PageNumbers) -> Layers:
        """Return the pool with these pages replaced; the input pool is donated."""
        left = iter(blocks)
        for each in self._sets:
            pool = each.write(pool, left, each.of(numbers))
        return pool

    def put_token(self, last_tokens: jax.Array, slot: int, token: int) -> jax.Array:
        """Return the last tokens with one replaced; the input is donated."""
        return self._put(last_tokens, _index((slot, token)))

    def _lower_put(self) -> jax.stages.Lowered:
        put = jax.jit(_put, donate_argnums=0, out_shardings=self._everywhere)
        return put.lower(self._last_tokens, _vector(2, self._everywhere))


class _SetCopies:
    """Compiled copies for one set of layers."""

    def __init__(
        self,
        layers: LayerSet,
        program: StepProgram,
        named: Callable[[str], str],
        *,
        gives: bool,
        takes: bool,
    ) -> None:
        limits = program.limits
        most = most_window_pages_seen(limits) if layers.windowed else limits.pages_per_sequence
        self._set = layers
        self._named = named
        self._overwrite = program.overwrite
        self._everywhere = program.everywhere
        self._sizes = block_sizes((1 << most.bit_length()) - 1)
        self._gives, self._takes = gives, takes
        self._reads: dict[int, Any] = {}
        self._writes: dict[int, Any] = {}

    def of(self, numbers: PageNumbers) -> Sequence[int]:
        return numbers.window_pages if self._set.windowed else numbers.pages

    @property
    def count(self) -> int:
        return len(self._sizes) * (self._gives + self._takes)

    def compile(self, programs: Programs) -> None:
        kind = "near pages" if self._set.windowed else "pages"
        for size in self._sizes:
            if self._gives:
                self._reads[size] = programs.compiled(
                    self._named(f"read {size} {kind}"), partial(self._lower_read, size)
                )
            if self._takes:
                self._writes[size] = programs.compiled(
                    self._named(f"write {size} {kind}"), partial(self._lower_write, size)
                )

    def warm(self, pool: Layers) -> Layers:
        scratch = (0,) * sum(self._sizes)
        blocks = self.read(pool, scratch) if self._gives else []
        if self._takes:
            pool = self.write(pool, iter(blocks or self._empty()), scratch)
        jax.block_until_ready(blocks)
        return pool

    def read(self, pool: Layers, pages: Sequence[int]) -> list[Block]:
        at, blocks = 0, []
        for size in block_sizes(len(pages)):
            blocks.append(self._reads[size](self._held(pool), _index(pages[at : at + size])))
            at += size
        return blocks

    def write(self, pool: Layers, blocks: Iterator[Block], pages: Sequence[int]) -> Layers:
        """blocks: of which this takes as many as the pages have."""
        at, held = 0, self._held(pool)
        for size in block_sizes(len(pages)):
            held = self._writes[size](held, next(blocks), _index(pages[at : at + size]))
            at += size
        replaced = dict(zip(self._set.places, held, strict=True))
        return tuple(replaced.get(place, layer) for place, layer in enumerate(pool))

    def _held(self, pool: Layers) -> Layers:
        return tuple(pool[place] for place in self._set.places)

    def _lower_read(self, size: int) -> jax.stages.Lowered:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self._set.block(size))
        read = jax.jit(partial(_read, self._set.kinds), out_shardings=shardings)
        return read.lower(self._set.layers, _vector(size, self._everywhere))

    def _lower_write(self, size: int) -> jax.stages.Lowered:
        layers = self._set.layers
        shardings = jax.tree.map(lambda leaf: leaf.sharding, layers)
        written = partial(_write, self._set.kinds, self._overwrite)
        write = jax.jit(written, donate_argnums=0, out_shardings=shardings)
        return write.lower(layers, self._set.block(size), _vector(size, self._everywhere))

    def _empty(self) -> list[Block]:
        """Return a block of each size, with arbitrary contents."""
        return [jax.tree.map(_zeros, self._set.block(size)) for size in self._sizes]


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Create zeros on each device without communication."""
    assert shape.sharding is not None
    part = np.zeros(shape.sharding.shard_shape(shape.shape), shape.dtype)
    return jax.make_array_from_callback(shape.shape, shape.sharding, lambda _: part)


def _vector(size: int, everywhere: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.int32, sharding=everywhere)


def _index(numbers: Sequence[int]) -> np.ndarray:
    return np.asarray(numbers, np.int32)


def _read(kinds: Sequence[Sequence[int]], layers: Layers, index: jax.Array) -> Block:
    def stacked(*held: jax.Array) -> jax.Array:
        return jnp.stack([leaf.at[index].get(mode="promise_in_bounds") for leaf in held])

    return tuple(jax.tree.map(stacked, *(layers[place] for place in kind)) for kind in kinds)


def _write(
    kinds: Sequence[Sequence[int]],
    write: Overwrite,
    layers: Layers,
    block: Block,
    index: jax.Array,
) -> Layers:
    replaced = list(layers)
    for kind, new in zip(kinds, block, strict=True):
        for number, place in enumerate(kind):
            rows = jax.tree.map(lambda leaf, number=number: leaf[number], new)
            replaced[place] = jax.tree.map(
                lambda held, row: write(held, index, row), layers[place], rows
            )
    return tuple(replaced)


def _put(last_tokens: jax.Array, pair: jax.Array) -> jax.Array:
    return last_tokens.at[pair[0]].set(pair[1])


class PageTraffic(Transfers, Protocol):
    """Carries pages out of this host's runner and into it."""

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        """Keep blocks of pages under the key."""
        ...

    def take(self, key: int) -> Sequence[Block]:
        """Return the blocks that have arrived under the key."""
        ...

    def close(self) -> None: ...


class MovablePages(RunnerPart):
    """Blocks in transit are the model's, and behind them as many of the draft model's, if any."""

    warmups = 1  # all page copies at once

    def __init__(self, transfers: PageTraffic, draft: DraftModel | None = None) -> None:
        """draft: another part of the runner."""
        self._transfers = transfers
        self._draft = draft

    @property
    def offer(self) -> str:
        """Address from which other replicas fetch this host's pages; "" if it offers none."""
        return self._transfers.addresses()[0] if self._transfers.gives else ""

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        gives, takes = self._transfers.gives, self._transfers.takes
        self._runner = runner
        self._copies = PageCopies(runner.program, gives=gives, takes=takes)
        self._pools: list[tuple[PageCopies, ModelRunner | DraftModel]] = [(self._copies, runner)]
        if self._draft is not None:
            copies = PageCopies(self._draft.program, gives=gives, takes=takes, draft=True)
            self._pools.append((copies, self._draft))
        return {
            ExportPages: lambda op: partial(self._export, op),
            ImportPages: lambda op: partial(self._import, op),
            FetchPages: lambda op: partial(self._fetch, op),
            DropPages: lambda op: partial(self._drop, op),
        }

    def compile(self, report: Callable[[Progress], None], programs: Programs) -> None:
        for copies, _ in self._pools:
            copies.compile(programs)

    def warm(self, index: int) -> None:
        for copies, pool in self._pools:
            pool.pages, last = copies.warm(pool.pages, self._last_tokens)
            self._keep(last)

    def close(self, *, shared: bool) -> None:
        self._transfers.close()

    def _export(self, op: ExportPages) -> Pending[None]:
        """Later steps may overwrite the pages: a copy is offered."""
        numbers = PageNumbers(op.pages, op.window_pages)
        blocks = [
            block for copies, pool in self._pools for block in copies.read(pool.pages, numbers)
        ]
        self._transfers.offer(op.key, blocks)
        return DONE

    def _import(self, op: ImportPages) -> Pending[None]:
        blocks, numbers = self._transfers.take(op.key), PageNumbers(op.pages, op.window_pages)
        size = len(blocks) // len(self._pools)
        for place, (copies, pool) in enumerate(self._pools):
            own = blocks[place * size : (place + 1) * size]
            pool.pages = copies.write(pool.pages, own, numbers)
        self._keep(self._copies.put_token(self._last_tokens, op.slot, op.token))
        return DONE

    def _fetch(self, op: FetchPages) -> Pending[None]:
        """Reserve in the order of ops; fetch when the result is asked for."""
        if not self._transfers.reserve(op.key, PageCount(op.pages, op.window_pages)):
            raise Unavailable("no memory for the pages")
        return Later(partial(self._transfers.fetch, op.key, op.addresses, op.deadline_s))

    def _drop(self, op: DropPages) -> Pending[None]:
        self._transfers.drop(op.key)
        return DONE

    @property
    def _last_tokens(self) -> jax.Array:
        assert self._runner.state is not None, "a pipeline stage hands nothing off"
        return self._runner.state.last_tokens

    def _keep(self, last_tokens: jax.Array) -> None:
        assert self._runner.state is not None
        self._runner.state = self._runner.state._replace(last_tokens=last_tokens)
