"""Engines of one model whose long prompts are computed on islands of their own.

A prompt island computes the prompt and the first token; then the pages move to another island,
whose engine goes on with the sequence as if it had computed them. Whatever fails, that engine
computes the prompt again, so answers are the same. Every island holds the whole model: without any
other left, prompt islands answer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from msgspec.structs import replace

from model_server.engine.engine import Announce, Engine, EngineRequest, EngineStats, SequenceUpdate
from model_server.engine.failure import DevicesLost
from model_server.engine.islands.engine_group import (
    EngineGroup,
    IslandLane,
    Lost,
    Make,
    Placed,
    is_lost,
)
from model_server.engine.limits import EngineLimits
from model_server.engine.outbox import Deliver
from model_server.engine.registry import finish_of
from model_server.engine.request import Begun, Finish
from model_server.engine.types import RowResult
from sax.errors import SaxError


class PageMoves(Protocol):
    """Moves a sequence's pages between islands. Thread-safe."""

    def accepts(self, engine_request: EngineRequest) -> bool:
        """Return True if the prompt is worth a move and its pages find room on the way."""
        ...

    def export(self, island: str, sequence: int, tokens: int) -> None:
        """Have the island's runner keep the pages of the prompt once it has computed them."""
        ...

    def move(self, sequence: int, island: str, then: Callable[[bool], None]) -> None:
        """Copy the pages to an island; `then` is told, on another thread, if they are there."""
        ...

    def expect(self, island: str, sequence: int, token: int) -> None:
        """Have the island's runner fill the sequence's pages before its first row there.

        token: the answer's first.
        """
        ...

    def forget(self, sequence: int) -> None:
        """Free what is kept or on its way for a sequence, if anything is."""
        ...


class SplitGroup(EngineGroup):
    """An EngineGroup whose prompt islands compute prompts for the others."""

    def __init__(
        self,
        deliver: Deliver,
        limits: EngineLimits,
        prompts: Collection[str],
        moves: PageMoves,
        make: Make = Engine,
        on_lost: Lost | None = None,
    ) -> None:
        """limits: of every engine. prompts: names of the prompt islands. The rest as in
        EngineGroup."""
        super().__init__(deliver, make, on_lost)
        self._limits = limits
        self._prompts = frozenset(prompts)
        self._moves = moves
        self._prompting: set[int] = set()  # sequences on prompt islands, for their first token
        self._moving: dict[int, int] = {}  # first tokens of sequences whose pages are on the way
        self._handed_over = 0

    def submit(
        self,
        engine_request: EngineRequest,
        *,
        reserved: bool = False,
        announce: Announce | None = None,
    ) -> int:
        with self._changed:
            lane = self._prompt_lane(engine_request)
            if lane is None:
                return super().submit(engine_request, reserved=reserved, announce=announce)

            def begin(id: int) -> None:
                self._live[id] = Placed(engine_request, lane)
                self._prompting.add(id)
                self._moves.export(lane.island, id, len(engine_request.prompt))
                if announce is not None:
                    announce(id)

            prompt = replace(engine_request, max_tokens=1, stop_ids=frozenset[int]())
            try:
                id = self._engines[lane].submit(prompt, announce=begin)
            except SaxError:  # it is full, or was lost just now; or the request is refused again
                return super().submit(engine_request, reserved=reserved, announce=announce)
            if reserved:
                self.release(engine_request.account)
            return id

    def cancel(self, sequence: int) -> None:
        with self._changed:
            super().cancel(sequence)
            if sequence not in self._prompting:  # there, the engine's last update ends it
                self._moves.forget(sequence)

    def close(self) -> None:
        with self._changed:
            moving = [id for id in self._moving if self._live.pop(id, None)]
            self._moving.clear()
        if moving:
            self._deliver([SequenceUpdate(id, RowResult(), "cancelled") for id in moving])
        super().close()

    def stats(self) -> EngineStats:
        stats = super().stats()
        with self._changed:  # prompt islands have finished those, too
            return EngineStats(**_without(stats, self._handed_over))

    # Under the lock

    def _prompt_lane(self, engine_request: EngineRequest) -> IslandLane | None:
        """Return the freest prompt island, if this prompt is for one; None without another."""
        lanes = self._by_load()
        prompts = [lane for lane in lanes if lane.island in self._prompts]
        begun = engine_request.answer or engine_request.score_from is not None
        if not prompts or len(prompts) == len(lanes) or begun or engine_request.beams is not None:
            return None
        return prompts[0] if self._moves.accepts(engine_request) else None

    def _by_load(self) -> list[IslandLane]:
        """Return the engines that compute: prompt islands last, then the freest first."""
        return sorted(super()._by_load(), key=lambda lane: lane.island in self._prompts)

    def _waits(self, id: int) -> bool:
        return super()._waits(id) and id not in self._moving

    def _after_prompt(self, update: SequenceUpdate) -> SequenceUpdate:
        """Turn the last update of a prompt island into one of the whole sequence."""
        id = update.sequence
        if id not in self._prompting or (update.finish is None and update.error is None):
            return update
        self._prompting.discard(id)
        live, token = self._live[id], update.result.token
        if live.cancelled or update.error is not None or token is None:
            self._moves.forget(id)
            told = update.error is None and live.cancelled
            return SequenceUpdate(id, RowResult(), "cancelled") if told else update
        ahead = replace(live.request, answer=(token,))
        if finish := self._finish(update, ahead):
            self._moves.forget(id)
            return replace(update, finish=finish)
        live.request, live.lane = ahead, None
        self._moving[id] = token
        return replace(update, finish=None)

    def _finish(self, update: SequenceUpdate, ahead: EngineRequest) -> Finish | None:
        """Return the finish of an answer of one token; its engine knew of no more than that."""
        return finish_of(ahead, self._limits) if update.finish == "length" else update.finish

    # Engines' threads, and those of moves

    def _pass_on(self, updates: list[SequenceUpdate]) -> None:
        with self._changed:
            told = [self._after_prompt(update) for update in updates]
            moving = [each.sequence for each in told if each.sequence in self._moving]
        super()._pass_on(told)  # the first token comes before any that another engine computes
        for id in moving:
            self._begin_move(id)

    def _begin_move(self, id: int) -> None:
        with self._changed:
            lane = next(iter(self._by_load()), None)
            if lane is None or lane.island in self._prompts or id not in self._live:
                self._compute_again(id)
                return
            engine = self._engines[lane]
        self._moves.move(id, lane.island, lambda there: self._moved(id, lane, engine, there))

    def _moved(self, id: int, lane: IslandLane, engine: Engine, there: bool) -> None:
        """Let the engine go on with the sequence, if it still computes."""
        with self._changed:
            live, token = self._live.get(id), self._moving.get(id)
            if live is None or token is None or not there or is_lost(engine):
                self._compute_again(id)
                return
            del self._moving[id]
            self._moves.expect(lane.island, id, token)
            try:
                engine.resume(id, replace(live.request, computed=True))
            except SaxError:
                self._compute_again(id)
                return
            live.lane = lane
            self._handed_over += 1

    def _compute_again(self, id: int) -> None:
        """Go on without the pages; with nothing, if the sequence was cancelled meanwhile."""
        self._moving.pop(id, None)
        self._moves.forget(id)
        if (live := self._live.get(id)) is not None:
            self._resume(id, live)

    def _move(self, lane: IslandLane, failure: DevicesLost, begun: list[Begun]) -> Collection[int]:
        with self._changed:
            for each in begun:
                self._prompting.discard(each.id)
                self._moves.forget(each.id)
            return super()._move(lane, failure, begun)


def _without(stats: EngineStats, handed_over: int) -> dict[str, Any]:
    values = {name: getattr(stats, name) for name in EngineStats.__dataclass_fields__}
    return values | {"finished": stats.finished - handed_over}
