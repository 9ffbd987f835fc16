"""Moves pages of one model from island to island, in one process that drives them all.

A runner on a prompt island keeps copies of a prompt's pages; they go to another island by
`device_put`, and the runner there takes them once they have arrived. It never takes what has not:
pages that are lost on the way, with the island that they came from, would be lost with all others
in the pool that they were written to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax

from model_server.disaggregation.disaggregation import is_remote
from model_server.disaggregation.handoff_runner import HandoffRunner, MovableRunner
from model_server.disaggregation.page_copies import Block, block_shape, block_sizes
from model_server.disaggregation.transfers import CONTEXTS, PageAllowance
from model_server.engine.sequence import EngineRequest
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import LayerPages

logger = logging.getLogger(__name__)

_MOVERS = 4  # sequences whose pages move at once


class _Unwanted(Exception):
    """The sequence ended before its pages moved."""


# Returns blocks of this many pages, once they are where the pool of these shapes is.
CopyBlocks = Callable[[Sequence[Block], Sequence[LayerPages], int], Sequence[Block]]


def copied_to(blocks: Sequence[Block], pool: Sequence[LayerPages], pages: int) -> Sequence[Block]:
    """Copy blocks to the devices of a pool and wait until they are there.

    Raises JaxRuntimeError if an island is lost.
    """
    shapes = [block_shape(pool, size) for size in block_sizes(pages)]
    shardings = jax.tree.map(lambda each: each.sharding, shapes)
    return jax.block_until_ready(jax.device_put(list(blocks), shardings))


@dataclass(slots=True)
class _Moving:
    """The pages of one sequence."""

    pages: int
    runner: HandoffRunner  # that makes them, then the one that takes them
    blocks: Sequence[Block] | None = None  # None: not computed yet


class IslandMoves:
    """`PageMoves` of one model. Sequences' ids are the keys of their pages."""

    def __init__(
        self, prompts: Collection[str], limits: EngineLimits, copied: CopyBlocks = copied_to
    ) -> None:
        """prompts: names of the islands that compute prompts for the others."""
        self.prompts = frozenset(prompts)
        self._limits = limits
        self._copied = copied
        self._room = PageAllowance(CONTEXTS * limits.pages_per_sequence)
        self._runners: dict[str, HandoffRunner] = {}  # by island
        self._pools: dict[str, Sequence[LayerPages]] = {}  # shapes
        self._moving: dict[int, _Moving] = {}
        self.moved = 0  # sequences whose pages arrived
        self._lock = threading.Lock()  # guards all above
        self._threads = ThreadPoolExecutor(_MOVERS, thread_name_prefix="move pages")

    @property
    def used(self) -> int:
        """Pages that are kept or on their way."""
        with self._lock:
            return self._room.used

    def port(self, island: str, pool: Sequence[LayerPages]) -> IslandPort:
        """Return what a runner on this island moves pages through; pool: its shapes."""
        with self._lock:
            self._pools[island] = pool
        return IslandPort(self, gives=island in self.prompts)

    def attach(self, island: str, runner: MovableRunner) -> HandoffRunner:
        """Return what hands over the pages of an island's runner, in place of one that was lost."""
        handing = HandoffRunner(runner, self)
        with self._lock:
            self._runners[island] = handing
        return handing

    # PageMoves

    def accepts(self, engine_request: EngineRequest) -> bool:
        prompt = len(engine_request.prompt)
        with self._lock:
            room = self._room.used + self._pages(prompt) <= self._room.pages
        return room and is_remote(prompt, self._limits)

    def export(self, island: str, sequence: int, tokens: int) -> None:
        pages = self._pages(tokens)
        with self._lock:
            runner = self._runners[island]
            taken = self._room.take(pages)
            assert taken, "accepts was asked"
            self._moving[sequence] = _Moving(pages, runner)
        runner.expect_export(sequence, sequence)

    def move(self, sequence: int, island: str, then: Callable[[bool], None]) -> None:
        self._threads.submit(self._move, sequence, island, then)

    def expect(self, island: str, sequence: int, token: int) -> None:
        with self._lock:
            moving = self._moving[sequence]
            moving.runner = runner = self._runners[island]
        runner.expect_import(sequence, sequence, token)

    def forget(self, sequence: int) -> None:
        with self._lock:
            moving = self._moving.get(sequence)
        if moving is not None:
            moving.runner.forget(sequence)
            self.drop(sequence)

    def close(self) -> None:
        """Free everything; moves under way end first."""
        self._threads.shutdown(cancel_futures=True)
        with self._lock:
            self._moving.clear()

    # Runners; keys are sequences

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        with self._lock:
            if (moving := self._moving.get(key)) is not None:
                moving.blocks = blocks

    def take(self, key: int) -> Sequence[Block]:
        with self._lock:
            moving = self._moving.pop(key)
            self._room.give_back(moving.pages)
        assert moving.blocks is not None, "they are there before the sequence is"
        return moving.blocks

    def drop(self, key: int) -> None:
        with self._lock:
            if (moving := self._moving.pop(key, None)) is not None:
                self._room.give_back(moving.pages)

    def _move(self, sequence: int, island: str, then: Callable[[bool], None]) -> None:
        try:
            self._copy(sequence, island)
        except _Unwanted:
            then(False)
        except Exception as exc:  # lost with one of the islands
            logger.warning("the pages of a prompt did not reach island %s: %s", island, exc)
            then(False)
        else:
            then(True)

    def _copy(self, sequence: int, island: str) -> None:
        with self._lock:
            moving, pool = self._moving.get(sequence), self._pools[island]
        if moving is None or moving.blocks is None:
            raise _Unwanted
        moving.blocks = self._copied(moving.blocks, pool, moving.pages)
        with self._lock:
            self.moved += 1

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._limits.page_size)


class IslandPort:
    """The side of one island's runner: has what `KvRunner` and `HandoffRunner` use."""

    def __init__(self, moves: IslandMoves, *, gives: bool) -> None:
        """gives: it computes prompts for others; else it takes their pages."""
        self.gives = gives
        self.takes = not gives
        self._moves = moves

    def addresses(self) -> Sequence[str]:
        """Return one that nobody dials: islands' arrays move by `device_put`."""
        return ("",)

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        self._moves.offer(key, blocks)

    def take(self, key: int) -> Sequence[Block]:
        return self._moves.take(key)

    def drop(self, key: int) -> None:
        self._moves.drop(key)

    def close(self) -> None:
        """Nothing is the runner's own: sequences' pages end with their sequences."""
