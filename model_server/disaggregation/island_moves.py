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
from model_server.disaggregation.handed_pages import (
    PageAllowance,
    PageCount,
    handed_over,
    transit_room,
)
from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.disaggregation.layer_set import Block, LayerSet
from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Runner

logger = logging.getLogger(__name__)

_MOVERS = 4  # sequences whose pages move at once


class _Unwanted(Exception):
    """The sequence ended before its pages moved."""


# Returns blocks of this many pages, once they are where the layers of these sets are.
CopyBlocks = Callable[[Sequence[Block], Sequence[LayerSet], PageCount], Sequence[Block]]


def copied_to(
    blocks: Sequence[Block], sets: Sequence[LayerSet], count: PageCount
) -> Sequence[Block]:
    """Copy blocks to the devices of a pool and wait until they are there.

    Raises JaxRuntimeError if an island is lost.
    """
    shapes = [block for each in sets for block in each.blocks(count)]
    shardings = jax.tree.map(lambda each: each.sharding, shapes)
    return jax.block_until_ready(jax.device_put(list(blocks), shardings))


@dataclass(slots=True)
class _Moving:
    """The pages of one sequence."""

    count: PageCount
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
        self._room = PageAllowance(transit_room(limits))
        self._runners: dict[str, HandoffRunner] = {}  # by island
        self._sets: dict[str, Sequence[LayerSet]] = {}
        self._moving: dict[int, _Moving] = {}
        self.moved = 0  # sequences whose pages arrived
        self._lock = threading.Lock()  # guards all above
        self._threads = ThreadPoolExecutor(_MOVERS, thread_name_prefix="move pages")

    @property
    def used(self) -> int:
        """Pages that are kept or on their way."""
        with self._lock:
            return self._room.used.pages

    def port(self, island: str, sets: Sequence[LayerSet]) -> IslandPort:
        """Return what a runner on this island moves pages through; sets: of its pool."""
        with self._lock:
            self._sets[island] = sets
        return IslandPort(self, gives=island in self.prompts)

    def attach(self, island: str, runner: Runner) -> HandoffRunner:
        """Return what hands over the pages of an island's runner, in place of one that was lost."""
        handing = HandoffRunner(runner, self)
        with self._lock:
            self._runners[island] = handing
        return handing

    # PageMoves

    def accepts(self, engine_request: EngineRequest) -> bool:
        prompt = len(engine_request.prompt)
        with self._lock:
            room = self._room.fits(handed_over(self._limits, prompt))
        return room and is_remote(prompt, self._limits)

    def export(self, island: str, sequence: int, tokens: int) -> None:
        count = handed_over(self._limits, tokens)
        with self._lock:
            runner = self._runners[island]
            taken = self._room.take(count)
            assert taken, "accepts was asked"
            self._moving[sequence] = _Moving(count, runner)
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
            self._room.give_back(moving.count)
        assert moving.blocks is not None, "they are there before the sequence is"
        return moving.blocks

    def drop(self, key: int) -> None:
        with self._lock:
            if (moving := self._moving.pop(key, None)) is not None:
                self._room.give_back(moving.count)

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
            moving, sets = self._moving.get(sequence), self._sets[island]
        if moving is None or moving.blocks is None:
            raise _Unwanted
        moving.blocks = self._copied(moving.blocks, sets, moving.count)
        with self._lock:
            self.moved += 1


class IslandPort:
    """The side of one island's runner: has what `MovablePages` and `HandoffRunner` use."""

    def __init__(self, moves: IslandMoves, *, gives: bool) -> None:
        """gives: it computes prompts for others; else it takes their pages."""
        self.gives = gives
        self.takes = not gives
        self._moves = moves

    def addresses(self) -> Sequence[str]:
        """Return one that nobody dials: islands' arrays move by `device_put`."""
        return ("",)

    def reserve(self, key: int, count: PageCount) -> bool:
        """Refuse: pages arrive by `IslandMoves.move`."""
        return False

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        raise AssertionError("nothing was reserved")

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        self._moves.offer(key, blocks)

    def take(self, key: int) -> Sequence[Block]:
        return self._moves.take(key)

    def drop(self, key: int) -> None:
        self._moves.drop(key)

    def close(self) -> None:
        """Nothing is the runner's own: sequences' pages end with their sequences."""
