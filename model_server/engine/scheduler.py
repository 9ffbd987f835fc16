"""Decides what each step computes, and applies its results. Pure: no clock, thread or device.

Every step is one flat batch: first one token for every running sequence, so that a long prompt
never stalls a stream, then prefill chunks within what is left of the token budget, and within what
`Pace` allows beside decodes.

`Accounts` decides whose turn it is: slots are shared among accounts, an account's slots go by
priority, then by age. The sequences of one account with one priority are admitted, and their
prompts computed, in order of arrival, one after the other; the prompts of several accounts share
each step's blocks, so a long one does not keep a short one waiting. If all slots or pages are taken
and the next in line has waited for a step, sequences of accounts that hold at least two slots more
than its own make room (`Accounts.displaceable`). When pages run out, the youngest sequence of the
heaviest account does. Who makes room is preempted: it loses its pages, goes back to its place in
the queue, and is recomputed later from prompt and answer so far.

Everything ends. A sequence is admitted only if the pages of all prompts that are under way are
there, and one more for each sequence that will need it, so it is not preempted for lack of pages
within `page_size` steps: each stay brings it forward. It is displaced for others only a bounded
number of times. And who waits becomes the next in line, because those before it are served
meanwhile.

`schedule` runs one step ahead of `commit`: it counts positions launched, not tokens known. A
sequence that `commit` ends may therefore have a surplus row in the step in flight; its result is
dropped. Its slot and pages are freed at once all the same, because the device runs steps in order:
the surplus row writes before any later owner does, and an owner reads only positions that it has
written itself.

A sequence whose keys and values were computed elsewhere takes slot and pages like any other, skips
its prefill and decodes at once: the runner fills the pages before it runs the sequence's first row.
If preempted, it is recomputed here.

What only some requests or models need is a `part`. Here is decided who gets what; `StepBuilder`
makes the rows, `LiveSequences` has sequences, slots and pages, `Commits` applies results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from model_server.engine.commits import Commits
from model_server.engine.decodes import Decodes
from model_server.engine.limits import EngineLimits, check_limits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.part import EnginePart
from model_server.engine.registry import parts_of
from model_server.engine.request import UNTIMED, SequenceUpdate, StepSpan
from model_server.engine.running.ops import Op
from model_server.engine.sequence import Sequence
from model_server.engine.series import StepSeries
from model_server.engine.shares import fresh_tokens
from model_server.engine.stats import SchedulerLoad
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import Pace, StepTimes
from model_server.engine.types import Sampling, SlotMask, Step, StepResult

_PATIENCE = 1  # steps that the next in line waits for a slot to come free before it gets one


class Scheduler:
    """Turns sequences into steps, and step results into updates."""

    def __init__(
        self,
        limits: EngineLimits,
        times: StepTimes | None = None,
        parts: Iterable[EnginePart[Any]] = (),
    ) -> None:
        """parts: further ones, before those of the registry."""
        check_limits(limits)
        self.limits = limits
        self.live = LiveSequences(limits)
        self.held = self.live.held
        self.accounts = self.live.accounts
        self.commits = Commits(self.live)
        self.prefill_tokens = 0  # computed, including recomputed ones
        self.preemptions = 0
        self.cancelled = 0
        self._parts = parts_of(self.live, times, parts)
        self._decodes = Decodes(self.live, self._parts, self._preempt)
        self._pace = Pace(times, limits.max_mixed_blocks)
        self._series = StepSeries(limits)
        self._samplings: list[Sampling | None] = [None] * limits.slots  # as the runner has them
        self._running = self.live.running

    def load(self) -> SchedulerLoad:
        """Return what it has now, and totals since it started."""
        held = self.held
        return SchedulerLoad(
            live=len(self.live),
            running=len(self._running),
            waiting=self.accounts.waiting,
            accounts=len(self.accounts),
            slots_used=self.limits.slots - held.slots_free,
            pages_used=held.pool.used,
            window_pages_used=held.window_pages_used,
            pages_cached=held.pool.idle,
            steps=self.live.steps,
            tokens=self.commits.tokens,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self._decodes.tokens,
            preemptions=self.preemptions,
            finished=self.commits.finished,
            cancelled=self.cancelled,
            prefix_queries=held.prefix_queries,
            prefix_hits=held.prefix_hits,
            prefix_evictions=held.pool.evictions,
        )

    def has_slot(self, id: int) -> bool:
        sequence = self.live.get(id)
        return sequence is not None and sequence.slot >= 0

    def add(self, sequence: Sequence) -> None:
        self._parts.begin(sequence)
        self.live.add(sequence)

    def op(self) -> Op | None:
        """Return what the runner shall do behind the last step that was scheduled, if anything."""
        ops = (part.op() for part in self._parts.op)
        return next((each for each in ops if each is not None), None)

    def cancel(self, id: int) -> bool:
        """Drop a live sequence and free its slot and pages; return False if it is not live."""
        sequence = self.live.get(id)
        if sequence is None:
            return False
        self.live.remove(sequence)
        self.cancelled += 1
        return True

    def cancel_all(self) -> list[int]:
        return [id for id in self.live.ids if self.cancel(id)]

    def schedule(self, now_s: float = 0.0) -> Step | None:
        """Return the next step, or None if nothing can be launched before the next commit.

        now_s: noted of the sequences that it starts; decides nothing.
        """
        live, accounts = self.live, self.accounts
        live.now_s = now_s
        if not all(part.plan() for part in self._parts.plan):
            return None
        step = StepBuilder(self.held, self._samplings)
        if accounts.waiting:
            self._displace()
            self._admit_computed(step)
        self._decodes.add(step)
        if accounts.unfinished or accounts.waiting:
            if (blocks := self._pace.blocks(len(step.rows))) is not None:
                step.keep_pace(blocks)
            self._prefill(step)
        if not step.rows and accounts.waiting:
            # A sequence that is recomputed gave up its slot after the others were admitted.
            self._admit_computed(step)
            self._decodes.add(step)
        if not step.rows and live.steps == live.committed and self._running:
            self._decodes.add(step, late=True)
        if not step.rows:
            return None
        live.steps += 1
        for sequence in step.chunks:
            self.held.note(sequence)
        for part in self._parts.scheduled:
            part.scheduled(step)
        if self.held.frees_unseen:
            self.held.free_unseen()
        self.prefill_tokens += step.prompt_tokens
        return step.step(live.steps)

    def schedule_series(self, now_s: float = 0.0) -> list[Step]:
        """Return the next step, and those that one launch can compute with it; [] for none."""
        first = self.schedule(now_s)
        if first is None:
            return []
        if not self._begins_series(first):
            return [first]
        steps = [first]
        while len(steps) < self._series.steps:
            step = self.schedule(now_s)
            assert step is not None, "a series was interrupted"
            steps.append(step)
        return steps

    def _begins_series(self, step: Step) -> bool:
        if self.accounts.waiting or self.accounts.unfinished:
            return False
        if not self._series.begins_with(step, self._running, self.held.pool.free):
            return False
        return all(part.allows_series() for part in self._parts.allows_series)

    def masks(self, step: Step) -> tuple[list[SlotMask], list[SequenceUpdate]]:
        """Return the masks of a guided step, and the ends of sequences that no token can go on.

        All steps before it must have been committed.
        """
        masks: list[SlotMask] = []
        failed: list[SequenceUpdate] = []
        for part in self._parts.masks:
            some, ended = part.masks(step)
            masks, failed = masks + some, failed + ended
        for update in failed:
            self.cancel(update.sequence)
        return masks, failed

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""
        self._pace.took(step, seconds)
        self._series.took(step, seconds)
        for part in self._parts.took:
            part.took(step, seconds)

    def commit(
        self, step: Step, result: StepResult, span: StepSpan = UNTIMED
    ) -> list[SequenceUpdate]:
        """Apply the results of a step. Steps must be committed in the order they were scheduled.

        span: told in the updates.
        """
        return self.commits.commit(step, result, span)

    def _displace(self) -> None:
        """Preempt for the next in line, if that gives it a slot and its pages."""
        if not self.accounts.uneven:
            return
        sequence = self.accounts.next()
        if (
            sequence is None
            or self.live.steps - sequence.since < _PATIENCE
            or self.held.fits(sequence)
        ):
            return
        victims: list[Sequence] = []
        for victim in self.accounts.displaceable(sequence):
            victims.append(victim)
            if self.held.fits(sequence, victims):
                for each in victims:
                    self._preempt(each)
                return

    def _admit_computed(self, step: StepBuilder) -> None:
        """Admit those next in line that need no prefill.

        Neither budget nor logit rows can be short: they hold a decode for every slot.
        """
        while self.held.slots_free and (sequence := self.accounts.next()):
            if not sequence.paging.computed or not self.held.fits(sequence):
                return
            self.live.admit(sequence)
            sequence.paging.computed = False
            step.set_sampling(sequence)
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            self.accounts.finish_prompt(sequence)
            step.grant(sequence, -(-sequence.goal // self.limits.page_size))

    def _preempt(self, victim: Sequence) -> None:
        """Free slot and pages; tokens in flight are still committed when they arrive."""
        self.live.restart(victim)
        self.preemptions += 1

    def _prefill(self, step: StepBuilder) -> None:
        """Give each account in turn a chunk, and admit more as long as blocks are left."""
        done: set[int] = set()
        while step.blocks and step.logit_rows:
            self._admit_waiting(step)
            turns = self.accounts.turns(min(step.blocks, step.logit_rows), done)
            if not turns:
                return
            self._share(turns, step)
            done.update(sequence.id for sequence in turns)

    def _admit_waiting(self, step: StepBuilder) -> None:
        """Admit all that may be; one without prefill waits for the next step's decodes."""
        while self.held.slots_free and (sequence := self.accounts.next()):
            if sequence.paging.computed or not self.held.fits(sequence):
                return
            if self.held.should_wait(sequence, step.chunks):
                return
            self.live.admit(sequence)

    def _share(self, turns: list[Sequence], step: StepBuilder) -> None:
        """Give each prompt an equal part of the blocks; what short ones leave goes to the others.

        Each also gets a logit row: decodes leave one for every prompt.
        """
        turns.sort(key=_order)
        for others in range(len(turns) - 1, -1, -1):
            sequence = turns[len(turns) - 1 - others]
            step.chunk(sequence, step.blocks // (others + 1), step.logit_rows - others)
            if sequence.launched == sequence.goal:
                self.accounts.finish_prompt(sequence)
                share = self.accounts.share(sequence, len(self._running))
                self._pace.begin(fresh_tokens(sequence), share)


def _order(sequence: Sequence) -> tuple[bool, int]:
    """Those first whose chunk is urgent, then short prompts."""
    urgent = any(part.is_urgent(sequence) for part in sequence.parts)
    return not urgent, sequence.goal - sequence.launched
