"""Decides what each step computes, and applies its results. Pure: no clock, thread or device.

Every step is one flat batch: first one token for every running sequence, so that a long prompt
never stalls a stream, then prefill chunks in order of arrival within what is left of the token
budget. Sequences run and wait in order of arrival: every running sequence is older than every
waiting one, and only the youngest running sequence can be in the middle of its prompt. When pages
run out, the youngest sequence is preempted: it loses its pages, goes to the front of the queue, and
is recomputed later from prompt and answer so far.

`schedule` runs one step ahead of `commit`: it counts positions launched, not tokens known. A
sequence that `commit` ends may therefore have a surplus row in the step in flight; its result is
dropped. Its slot and pages are freed at once all the same, because the device runs steps in order:
the surplus row writes before any later owner does, and an owner reads only positions that it has
written itself.

A sequence whose keys and values were computed elsewhere takes slot and pages like any other, skips
its prefill and decodes at once: the runner fills the pages before it runs the sequence's first row.
If preempted, it is recomputed here.

A model with LongRoPE rotates a sequence by the factors for its length at the time. One that
outgrows the short factors starts again, as if preempted, with the long ones; this happens once.
"""

from __future__ import annotations

from collections import deque

from model_server.engine.pages import PagePool
from model_server.engine.sequence import Finish, Sequence, SequenceUpdate
from model_server.engine.types import (
    EngineLimits,
    PageGrant,
    Row,
    RowResult,
    Sampling,
    SlotSampling,
    Step,
    StepResult,
)


class _Draft:
    """A step under construction."""

    __slots__ = ("blocks", "grants", "logit_rows", "rows", "samplings")

    def __init__(self, limits: EngineLimits) -> None:
        self.rows: list[Row] = []
        self.grants: list[PageGrant] = []
        self.samplings: list[SlotSampling] = []
        self.logit_rows = limits.max_logit_rows  # still available
        self.blocks = 0  # prefill blocks still available: what decodes leave of the budget


class Scheduler:
    """Turns sequences into steps, and step results into updates."""

    def __init__(self, limits: EngineLimits) -> None:
        check_limits(limits)
        self.limits = limits
        self.steps = 0  # scheduled
        self.prefill_tokens = 0  # computed, including recomputed ones
        self.decode_tokens = 0  # computed, including surplus ones
        self.tokens = 0  # generated
        self.preemptions = 0
        self.finished = 0
        self.cancelled = 0
        self._pool = PagePool(limits.pages)
        self._slots = list(range(limits.slots - 1, -1, -1))  # free; the last one is taken next
        self._samplings: list[Sampling | None] = [None] * limits.slots  # as the runner has them
        self._live: dict[int, Sequence] = {}
        self._running: list[Sequence] = []  # oldest first
        self._waiting: deque[Sequence] = deque()  # oldest first
        self._committed = 0

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def slots_used(self) -> int:
        return self.limits.slots - len(self._slots)

    @property
    def pages_used(self) -> int:
        return self._pool.used

    def add(self, sequence: Sequence) -> None:
        assert not self._live or sequence.id > next(reversed(self._live)), "ids must increase"
        self._live[sequence.id] = sequence
        self._waiting.append(sequence)

    def cancel(self, id: int) -> bool:
        """Drop a live sequence and free its slot and pages; return False if it is not live."""
        sequence = self._live.get(id)
        if sequence is None:
            return False
        self._remove(sequence)
        self.cancelled += 1
        return True

    def cancel_all(self) -> list[int]:
        return [id for id in list(self._live) if self.cancel(id)]

    def schedule(self) -> Step | None:
        """Return the next step, or None if nothing can be launched before the next commit."""
        draft = _Draft(self.limits)
        self._admit_computed(draft)
        self._decode(draft)
        self._prefill(draft)
        if not draft.rows:
            return None
        self.steps += 1
        return Step(self.steps, tuple(draft.rows), tuple(draft.grants), tuple(draft.samplings))

    def commit(self, step: Step, result: StepResult) -> list[SequenceUpdate]:
        """Apply the results of a step. Steps must be committed in the order they were scheduled."""
        self._committed += 1
        assert step.number == result.number == self._committed, "steps must commit in order"
        updates: list[SequenceUpdate] = []
        for row, outcome in zip(step.rows, result.rows, strict=True):
            sequence = self._live.get(row.sequence)
            if sequence is None:
                continue  # surplus: it ended or was cancelled while this step was in flight
            if row.yields:
                updates.append(self._commit_token(sequence, outcome))
            elif row.targets and (update := self._commit_scores(sequence, outcome)):
                updates.append(update)
        return updates

    # Scheduling

    def _admit_computed(self, draft: _Draft) -> None:
        """Admit the sequences in front that need no prefill, unless a prompt is half done.

        Neither budget nor logit rows can be short: they hold a decode for every slot.
        """
        running, waiting = self._running, self._waiting
        if running and running[-1].launched < running[-1].goal:
            return
        while waiting and waiting[0].computed and self._slots and self._has_pages(waiting[0]):
            sequence = waiting[0]
            self._admit(sequence, draft)
            sequence.computed = False
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            sequence.rotate(self.limits.short_context, sequence.goal)
            self._grant(sequence, -(-sequence.goal // self.limits.page_size), draft)

    def _decode(self, draft: _Draft) -> None:
        """Add a row for every running sequence that is past its prefill, oldest first."""
        page_size, running, rows = self.limits.page_size, self._running, draft.rows
        index = 0
        while index < len(running):  # _grow may preempt the youngest
            sequence = running[index]
            index += 1
            start = sequence.launched
            if start < sequence.goal or start >= sequence.end:
                continue
            if start == sequence.recompute_at:
                if not sequence.in_flight:  # else its next token comes with the next commit
                    self._restart(sequence)
                    index -= 1
                continue
            if start == len(sequence.pages) * page_size and not self._grow(sequence, draft):
                continue
            rows.append(Row(sequence.id, sequence.slot, start, (), True, (), sequence.long))
            sequence.launched = start + 1
            sequence.in_flight += 1
        limits = self.limits
        draft.logit_rows -= len(rows)
        draft.blocks = (limits.token_budget - len(rows)) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            draft.blocks = min(draft.blocks, limits.max_prefill_blocks)
        self.decode_tokens += len(rows)

    def _grow(self, sequence: Sequence, draft: _Draft) -> bool:
        """Grant one more page, preempting the youngest sequences until one is free.

        Returns False if the sequence itself was the youngest. No victim has a row in this step yet,
        because rows are added oldest first.
        """
        while not self._pool.free:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._grant(sequence, 1, draft)
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Free slot and pages; tokens in flight are still committed when they arrive."""
        self._restart(victim)
        self.preemptions += 1

    def _restart(self, sequence: Sequence) -> None:
        self._release(sequence)
        self._waiting.appendleft(sequence)

    def _prefill(self, draft: _Draft) -> None:
        """Continue the unfinished prompt, then admit sequences until one is left unfinished."""
        running = self._running
        if running and running[-1].launched < running[-1].goal:
            sequence = running[-1]
            self._chunk(sequence, draft)
            if sequence.launched < sequence.goal:
                return
        while self._waiting and self._admissible(self._waiting[0], draft):
            sequence = self._waiting[0]
            self._admit(sequence, draft)
            self._chunk(sequence, draft)
            if sequence.launched < sequence.goal:
                return

    def _admissible(self, sequence: Sequence, draft: _Draft) -> bool:
        """Check for a slot, budget, and pages; a sequence without prefill waits for `_decode`."""
        if sequence.computed or not (self._slots and draft.blocks and draft.logit_rows):
            return False
        return self._has_pages(sequence)

    def _has_pages(self, sequence: Sequence) -> bool:
        """Check for the pages of the whole prefill.

        Also keeps one page free for each sequence that will need another, including this one, so
        that no admitted sequence is preempted within the next `page_size` steps. This also keeps a
        victim from returning in the step that preempted it.
        """
        page_size = self.limits.page_size
        wanted = -(-min(len(sequence.tokens), sequence.end) // page_size)
        reserve = wanted * page_size < sequence.end
        reserve += sum(len(other.pages) * page_size < other.end for other in self._running)
        return self._pool.free >= wanted + reserve

    def _admit(self, sequence: Sequence, draft: _Draft) -> None:
        assert not sequence.in_flight, "a victim's last token must be committed first"
        self._waiting.popleft()
        self._running.append(sequence)
        sequence.slot = self._slots.pop()
        sequence.goal = sequence.end
        sequence.rotate(self.limits.short_context, len(sequence.tokens))
        if sequence.score_from is None:
            sequence.goal = len(sequence.tokens)
            if self._samplings[sequence.slot] != sequence.sampling:
                self._samplings[sequence.slot] = sequence.sampling
                draft.samplings.append(SlotSampling(sequence.slot, sequence.sampling))

    def _chunk(self, sequence: Sequence, draft: _Draft) -> None:
        """Add the next chunk of a prefill, as far as budget, logit rows and pages allow."""
        start = sequence.launched
        end = start + self._chunk_length(sequence, draft)
        if end == start:
            return
        missing = -(-end // self.limits.page_size) - len(sequence.pages)
        if missing > 0:
            self._grant(sequence, missing, draft)
        yields = sequence.score_from is None and end == sequence.goal
        targets: tuple[int, ...] = ()
        if end > sequence.unscored:
            targets = tuple(sequence.tokens[max(start, sequence.unscored) + 1 : end + 1])
        tokens = tuple(sequence.tokens[start:end])
        row = Row(sequence.id, sequence.slot, start, tokens, yields, targets, sequence.long)
        draft.rows.append(row)
        draft.blocks -= -(-len(tokens) // self.limits.prefill_block)
        draft.logit_rows -= yields + len(targets)
        sequence.launched = end
        sequence.in_flight += yields
        sequence.scores_launched += len(targets)
        self.prefill_tokens += len(tokens)

    def _chunk_length(self, sequence: Sequence, draft: _Draft) -> int:
        """Return whole blocks, unless the chunk ends the prefill or logit rows do not allow one."""
        start, block = sequence.launched, self.limits.prefill_block
        left = sequence.goal - start
        room = (len(sequence.pages) + self._pool.free) * self.limits.page_size - start
        length = min(left, room, draft.blocks * block)
        if length < left:
            length -= length % block
        if sequence.score_from is None:
            return length  # needs at most one logit row, and decodes leave one per free slot
        scorable = max(sequence.unscored - start, 0) + draft.logit_rows
        if length > scorable:
            length = max(scorable - scorable % block, min(scorable, block))
        return length

    def _grant(self, sequence: Sequence, count: int, draft: _Draft) -> None:
        first = len(sequence.pages)
        pages = [self._pool.allocate() for _ in range(count)]
        sequence.pages += pages
        draft.grants.append(PageGrant(sequence.slot, first, tuple(pages)))

    # Committing

    def _commit_token(self, sequence: Sequence, outcome: RowResult) -> SequenceUpdate:
        assert outcome.token is not None, "a yielding row must give a token"
        self.tokens += 1
        finish = sequence.append(outcome.token)
        if finish:
            self._finish(sequence)
        return SequenceUpdate(sequence.id, outcome, finish)

    def _commit_scores(self, sequence: Sequence, outcome: RowResult) -> SequenceUpdate | None:
        """Collect scores; a scored sequence gets one update, with its last score."""
        sequence.scores += outcome.target_logprobs
        assert sequence.score_from is not None
        if len(sequence.scores) < len(sequence.tokens) - sequence.score_from:
            return None
        self._finish(sequence)
        finish: Finish = "score"
        return SequenceUpdate(
            sequence.id, RowResult(target_logprobs=tuple(sequence.scores)), finish
        )

    def _finish(self, sequence: Sequence) -> None:
        self._remove(sequence)
        self.finished += 1

    def _remove(self, sequence: Sequence) -> None:
        del self._live[sequence.id]
        if sequence.slot >= 0:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages (see the module docstring on steps in flight)."""
        self._running.remove(sequence)
        self._slots.append(sequence.slot)
        for page in sequence.pages:
            self._pool.release(page)
        sequence.pages = []
        sequence.slot = -1
        sequence.launched = 0


def check_limits(limits: EngineLimits) -> None:
    """Raise ValueError for limits under which some sequence could wait forever."""
    if min(limits.slots, limits.pages, limits.page_size, limits.prefill_block) < 1:
        raise ValueError(f"slots, pages, page_size and prefill_block must be positive: {limits}")
    if limits.max_context < 2:
        raise ValueError(f"max_context must hold a prompt and an answer: {limits.max_context}")
    if limits.max_prefill_blocks is not None and limits.max_prefill_blocks < 1:
        raise ValueError(f"max_prefill_blocks must be positive: {limits.max_prefill_blocks}")
    least = limits.slots - 1 + limits.prefill_block
    if limits.token_budget < least:
        raise ValueError(
            f"token_budget is {limits.token_budget}; with {limits.slots} slots and a "
            f"prefill_block of {limits.prefill_block} it must be at least {least}"
        )
    if limits.max_logit_rows < limits.slots:
        raise ValueError(
            f"max_logit_rows is {limits.max_logit_rows}; it must be at least slots: {limits.slots}"
        )
