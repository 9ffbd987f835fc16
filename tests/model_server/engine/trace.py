"""Drives a Scheduler with a FakeRunner as the engine does, and checks every step on the way."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from model_server.disaggregation.handed_pages import handed_over
from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Pending
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import Hypothesis, Row, RowResult, Step, StepResult, Top
from tests.model_server.engine.fake_runner import GARBAGE, FakeRunner, hash_of, logprob, next_token
from tests.model_server.engine.fake_traffic import FakeTraffic, MovedRows


@dataclass
class Ask:
    """A submission that arrives at one turn and may be cancelled at a later one."""

    engine_request: EngineRequest
    turn: int = 0
    cancel_at: int | None = None
    export_key: int | None = None  # under which its prompt's pages are offered


@dataclass
class Answer:
    """What a sequence got."""

    results: list[RowResult] = field(default_factory=list)
    finish: str | None = None
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def tokens(self) -> list[int]:
        return [result.token for result in self.results if result.token is not None]

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(score for result in self.results for score in result.target_logprobs)

    @property
    def ranks(self) -> list[int]:
        return [rank for result in self.results for rank in result.target_ranks]

    @property
    def tops(self) -> list[Top]:
        return [top for result in self.results for top in result.target_tops]

    def take(self, update: SequenceUpdate) -> None:
        assert self.finish is None, "an update came after the last"
        self.results.append(update.result)
        self.finish = update.finish
        self.hypotheses = update.hypotheses


class Trace:
    """One scheduler, one fake runner, one step in flight while the next is launched."""

    def __init__(
        self,
        limits: EngineLimits,
        drafting: Drafting | None = None,
        device: FakeRunner | None = None,
    ) -> None:
        self.scheduler = Scheduler(limits, parts=[drafting] if drafting else [])
        self.traffic = FakeTraffic()
        self.device = device or FakeRunner(limits)
        self.device.traffic = self.traffic
        self.runner = HandoffRunner(self.device, self.traffic)
        self.steps: list[Step] = []
        self.answers: dict[int, Answer] = {}
        self._in_flight: tuple[Step, Pending[Seq[StepResult]]] | None = None
        self._submissions: dict[int, EngineRequest] = {}
        self._unfinished: set[int] = set()  # whose prefill has begun and not ended

    def add(self, id: int, engine_request: EngineRequest, export_key: int | None = None) -> None:
        self.scheduler.add(new_sequence(id, engine_request, self.scheduler.limits))
        self.answers[id] = Answer()
        self._submissions[id] = engine_request
        if engine_request.computed:
            assert engine_request.answer == (
                next_token(engine_request.prompt, engine_request.sampling),
            )
            self.traffic.here[id] = pages_of(engine_request, self.scheduler.limits)
            self.runner.expect_import(id, id, engine_request.answer[0])
        if export_key is not None:
            self.runner.expect_export(id, export_key)

    def cancel(self, id: int) -> None:
        if self.scheduler.cancel(id):
            self.runner.forget(id)
            self.answers[id].finish = "cancelled"

    def turn(self) -> Step | None:
        """Launch a step, then commit the one before; returns the step launched."""
        step = self.scheduler.schedule()
        launched = None
        if step:
            check_step(self.scheduler.limits, step)
            for row in step.rows:
                if not row.is_decode:
                    self._check_chunk(row)
            self.steps.append(step)
            launched = (step, self.runner.launch(step))
        live = len(self.scheduler.live)
        assert launched or self._in_flight or not live, "nothing to do, yet live"
        if self._in_flight:
            before, pending = self._in_flight
            for update in self.scheduler.commit(before, pending.result()[0]):
                self.answers[update.sequence].take(update)
        self._in_flight = launched
        return step

    def _check_chunk(self, row: Row) -> None:
        """A member's prompts are prefilled one after the other, the most urgent first, in whole
        blocks up to their last chunk.
        """
        mine = self._submissions.get(row.sequence)
        if mine is None:
            return  # a hypothesis that is computed again
        elders = [
            id
            for id in self._unfinished
            if id < row.sequence
            and user_of(self._submissions[id]) == user_of(mine)
            and self._submissions[id].priority <= mine.priority
        ]
        assert all(self.answers[id].finish for id in elders), "it overtook an older prompt"
        asked, block = mine, self.scheduler.limits.prefill_block
        if row.yields or (not asked.max_tokens and row.start + row.count == len(asked.prompt) - 1):
            self._unfinished.discard(row.sequence)
            return
        self._unfinished.add(row.sequence)
        # When logit rows allow less than a block, a score still goes on.
        assert row.count % block == 0 or (row.targets and row.count < block)

    def finish(self) -> None:
        """Go on until nothing lives and nothing is in flight."""
        while self.scheduler.load().live or self._in_flight:
            self.turn()
        check_conserved(self.scheduler)


def run(
    limits: EngineLimits,
    asks: list[Ask],
    drafting: Drafting | None = None,
    device: FakeRunner | None = None,
) -> Trace:
    """Play a whole trace to its end. The sequence ids are 1, 2, ... in the order of `asks`, with
    room for its hypotheses after each beam search."""
    trace = Trace(limits, drafting, device)
    ordered = sorted(enumerate(asks, 1), key=lambda item: item[1].turn)
    ids: dict[int, int] = {}
    free = 1
    for place, ask in ordered:
        ids[place] = free
        beams = ask.engine_request.beams
        free += beams.size if beams else 1
    arrivals = [(ids[place], ask) for place, ask in ordered]
    for turn in range(max((max(ask.turn, ask.cancel_at or 0) for ask in asks), default=0) + 1):
        for id, ask in arrivals:
            if ask.turn == turn:
                trace.add(id, ask.engine_request, ask.export_key)
            if ask.cancel_at == turn and id in trace.answers:
                trace.cancel(id)
        trace.turn()
    trace.finish()
    trace.answers = {place: trace.answers[ids[place]] for place in sorted(ids)}
    return trace


def user_of(engine_request: EngineRequest) -> tuple[str, str]:
    """The account and its member."""
    return engine_request.account, engine_request.member


def pages_of(engine_request: EngineRequest, limits: EngineLimits) -> MovedRows:
    """A prompt as another runner would have left it in its pages: beyond its end lies garbage."""
    prompt = engine_request.prompt
    pages, window_pages = handed_over(limits, len(prompt))
    flat = np.full(pages * limits.page_size, GARBAGE, np.int64)
    flat[: len(prompt)] = prompt
    rows = flat.reshape(pages, limits.page_size)
    state = (len(prompt), hash_of(prompt))
    states = (state,) * window_pages if limits.windows.recurrent else ()
    long = limits.short_context is not None and len(prompt) > limits.short_context
    of_windows = None if limits.windows.sliding is None else rows[pages - window_pages :]
    return MovedRows(rows, long, of_windows, states)


def check_step(limits: EngineLimits, step: Step) -> None:
    """No limit is exceeded, decodes come first, and only draft tokens repeat a sequence."""
    block = limits.prefill_block
    kinds = [row.is_decode for row in step.rows]
    assert kinds == sorted(kinds, reverse=True), "decodes come first"
    occupied = sum(1 if row.is_decode else -(-row.count // block) * block for row in step.rows)
    assert occupied <= limits.token_budget
    blocks = (occupied - sum(kinds)) // block
    assert limits.max_prefill_blocks is None or blocks <= limits.max_prefill_blocks
    assert sum(row.yields + len(row.targets) for row in step.rows) <= limits.max_logit_rows
    own = [
        row
        for row, before in zip(step.rows, (None, *step.rows), strict=False)
        if before is None or not is_draft_token(row, before)
    ]
    assert len({row.slot for row in own}) == len(own)
    assert len(step.rows) <= limits.slots
    assert len({row.sequence for row in own}) == len(own)
    granted = [(grant.slot, page) for grant in step.grants for page in grant.pages if page]
    assert len(set(granted)) == len(granted), "a page is twice in one table"
    assert {grant.slot for grant in step.grants} <= {row.slot for row in step.rows}
    # The slots of a beam search are set before any but the first has a hypothesis.
    set_now = {change.slot for change in step.samplings if change.sampling.allowed is None}
    assert set_now <= {row.slot for row in step.rows}
    for row in step.rows:
        assert row.start + row.count <= limits.max_context
        assert len(row.targets) <= row.count


def is_draft_token(row: Row, before: Row) -> bool:
    """A decode right behind the same sequence's row for the position before."""
    behind = row.sequence == before.sequence and row.start == before.start + before.count
    return behind and row.is_decode and row.given >= 0


def residencies(trace: Trace, id: int) -> list[tuple[int, int]]:
    """The first and the last step of each time that a sequence held a slot."""
    found: list[tuple[int, int]] = []
    for step in trace.steps:
        for row in step.rows:
            if row.sequence == id and row.start == 0:
                found.append((step.number, step.number))
            elif row.sequence == id:
                found[-1] = (found[-1][0], step.number)
    return found


def check_conserved(scheduler: Scheduler) -> None:
    """All slots and all pages are back."""
    load = scheduler.load()
    assert (load.live, load.running, load.waiting) == (0, 0, 0)
    held = load.slots_used, load.pages_used, load.window_pages_used
    assert held == (0, 0, 0)


def context_of(limits: EngineLimits) -> int:
    """How many tokens one sequence can have at most."""
    return min(limits.max_context, limits.pages * limits.page_size)


def alone(engine_request: EngineRequest, limits: EngineLimits) -> tuple[list[int], str]:
    """The reference: the same request one token at a time, with nobody else there."""
    tokens = list(engine_request.prompt)
    answer: list[int] = []
    while True:
        answer.append(next_token(tokens, engine_request.sampling, limits.windows.every))
        tokens.append(answer[-1])
        if answer[-1] in engine_request.stop_ids:
            return answer, "stop"
        if len(answer) == engine_request.max_tokens or len(tokens) == context_of(limits):
            return answer, "length"


def scores_alone(engine_request: EngineRequest) -> tuple[float, ...]:
    """The reference for scores."""
    prompt, first = engine_request.prompt, engine_request.score_from
    assert first is not None
    return tuple(logprob(prompt[:end], prompt[end]) for end in range(first, len(prompt)))
