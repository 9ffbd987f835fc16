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

A model with LongRoPE rotates a sequence by the factors for its length at the time. One that
outgrows the short factors starts again, as if preempted, with the long ones; this happens once.
"""

from __future__ import annotations

from collections.abc import Collection

from model_server.engine.accounts import Accounts
from model_server.engine.limits import check_limits
from model_server.engine.pages import PagePool
from model_server.engine.prefill import chunk_length, pages_lacking, pages_to_begin
from model_server.engine.sequence import Finish, Sequence, SequenceUpdate
from model_server.engine.timing.pace import Pace
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import (
    EngineLimits,
    PageGrant,
    Row,
    RowResult,
    Sampling,
    SlotMask,
    SlotSampling,
    Step,
    StepResult,
)
from sax.errors import SaxError

_PATIENCE = 1  # steps that the next in line waits for a slot to come free before it gets one


class _Draft:
    """A step under construction."""

    __slots__ = ("blocks", "grants", "guided", "logit_rows", "rows", "samplings")

    def __init__(self, limits: EngineLimits) -> None:
        self.rows: list[Row] = []
        self.grants: list[PageGrant] = []
        self.samplings: list[SlotSampling] = []
        self.logit_rows = limits.max_logit_rows  # still available
        self.guided = False  # a row's token is chosen under a mask
        self.blocks = 0  # prefill blocks still available: what decodes leave of the budget


class Scheduler:
    """Turns sequences into steps, and step results into updates."""

    def __init__(self, limits: EngineLimits, times: StepTimes | None = None) -> None:
        check_limits(limits)
        self.limits = limits
        self._pace = Pace(times, limits.max_mixed_blocks)
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
        self._running: list[Sequence] = []  # in order of admission
        self._accounts = Accounts(limits.max_running_per_account)
        self._committed = 0

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return self._accounts.waiting

    @property
    def slots_used(self) -> int:
        return self.limits.slots - len(self._slots)

    @property
    def pages_used(self) -> int:
        return self._pool.used

    @property
    def accounts(self) -> int:
        """Accounts with live sequences."""
        return len(self._accounts)

    def has_slot(self, id: int) -> bool:
        sequence = self._live.get(id)
        return sequence is not None and sequence.slot >= 0

    def live_of(self, account: str) -> int:
        return self._accounts.live(account)

    def add(self, sequence: Sequence) -> None:
        assert not self._live or sequence.id > next(reversed(self._live)), "ids must increase"
        self._live[sequence.id] = sequence
        sequence.since = self.steps
        self._accounts.add(sequence)

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
        accounts = self._accounts
        if accounts.waiting:
            self._displace()
            self._admit_computed(draft)
        self._decode(draft)
        if accounts.unfinished or accounts.waiting:
            self._keep_pace(draft)
            self._prefill(draft)
        if not draft.rows:
            return None
        self.steps += 1
        return Step(
            self.steps,
            tuple(draft.rows),
            tuple(draft.grants),
            tuple(draft.samplings),
            draft.guided,
        )

    def masks(self, step: Step) -> tuple[list[SlotMask], list[SequenceUpdate]]:
        """Return the masks of a guided step, and the ends of sequences that no token can go on.

        All steps before it must have been committed.
        """
        masks: list[SlotMask] = []
        failed: list[SequenceUpdate] = []
        for row in step.rows:
            sequence = self._live.get(row.sequence)
            if sequence is None or sequence.guide is None or not row.yields:
                continue
            try:
                masks.append(SlotMask(row.slot, sequence.guide.mask()))
            except SaxError as error:
                self.cancel(sequence.id)
                failed.append(SequenceUpdate(sequence.id, RowResult(), error=error))
        return masks, failed

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

    def _displace(self) -> None:
        """Preempt for the next in line, if that gives it a slot and its pages."""
        if not self._accounts.uneven:
            return
        sequence = self._accounts.next()
        if sequence is None or self.steps - sequence.since < _PATIENCE or self._fits(sequence):
            return
        victims: list[Sequence] = []
        for victim in self._accounts.displaceable(sequence):
            victims.append(victim)
            if self._fits(sequence, victims):
                for each in victims:
                    self._preempt(each)
                return

    def _admit_computed(self, draft: _Draft) -> None:
        """Admit those next in line that need no prefill.

        Neither budget nor logit rows can be short: they hold a decode for every slot.
        """
        while self._slots and (sequence := self._accounts.next()) and sequence.computed:
            if not self._fits(sequence):
                return
            self._admit(sequence)
            self._set_sampling(sequence, draft)
            sequence.computed = False
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            sequence.rotate(self.limits.short_context, sequence.goal)
            self._accounts.finish_prompt(sequence)
            self._grant(sequence, -(-sequence.goal // self.limits.page_size), draft)

    def _decode(self, draft: _Draft) -> None:
        """Add a row for every running sequence that is past its prefill."""
        page_size, rows = self.limits.page_size, draft.rows
        if self.limits.short_context is not None:
            self._restart_outgrown()
        if self._pool.free < len(self._running):
            self._make_room()
        for sequence in self._running:
            start = sequence.launched
            if start < sequence.goal or start >= sequence.end or start == sequence.recompute_at:
                continue
            if start == len(sequence.pages) * page_size:
                self._grant(sequence, 1, draft)
            row = Row(
                sequence.id, sequence.slot, start, (), True, (), sequence.long, sequence.adapter
            )
            rows.append(row)
            sequence.launched = start + 1
            sequence.in_flight += 1
            if sequence.guide is not None:
                draft.guided = True
        limits = self.limits
        draft.logit_rows -= len(rows)
        draft.blocks = (limits.token_budget - len(rows)) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            draft.blocks = min(draft.blocks, limits.max_prefill_blocks)
        self.decode_tokens += len(rows)

    def _keep_pace(self, draft: _Draft) -> None:
        blocks = self._pace.blocks(len(draft.rows))
        if blocks is not None:
            draft.blocks = min(draft.blocks, blocks)

    def _make_room(self) -> None:
        """Preempt until every sequence that decodes into a new page can have one."""
        page_size = self.limits.page_size
        while self._pool.free < sum(
            sequence.goal <= sequence.launched < sequence.end
            and sequence.launched != sequence.recompute_at
            and sequence.launched == len(sequence.pages) * page_size
            for sequence in self._running
        ):
            self._preempt(self._accounts.victim())

    def _preempt(self, victim: Sequence) -> None:
        """Free slot and pages; tokens in flight are still committed when they arrive."""
        self._restart(victim)
        self.preemptions += 1

    def _restart_outgrown(self) -> None:
        """Queue again what outgrew the short rotary factors, once its last token is known."""
        outgrown = [
            each
            for each in self._running
            if each.launched == each.recompute_at >= each.goal and not each.in_flight
        ]
        for sequence in outgrown:
            self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.since = self.steps
        self._accounts.wait(sequence)

    def _prefill(self, draft: _Draft) -> None:
        """Give each account in turn a chunk, and admit more as long as blocks are left."""
        done: set[int] = set()
        while draft.blocks and draft.logit_rows:
            self._admit_waiting()
            turns = self._accounts.turns(min(draft.blocks, draft.logit_rows), done)
            if not turns:
                return
            self._share(turns, draft)
            done.update(sequence.id for sequence in turns)

    def _admit_waiting(self) -> None:
        """Admit all that may be; one without prefill waits for the next step's decodes."""
        while self._slots and (sequence := self._accounts.next()):
            if sequence.computed or not self._fits(sequence):
                return
            self._admit(sequence)

    def _share(self, turns: list[Sequence], draft: _Draft) -> None:
        """Give each prompt an equal part of the blocks; what short ones leave goes to the others.

        Each also gets a logit row: decodes leave one for every prompt.
        """
        turns.sort(key=lambda sequence: sequence.goal - sequence.launched)
        for others in range(len(turns) - 1, -1, -1):
            sequence = turns[len(turns) - 1 - others]
            self._chunk(sequence, draft, draft.blocks // (others + 1), draft.logit_rows - others)

    def _fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        """Check for a slot and for the pages of the whole prefill, had `without` been preempted.

        Keeps the pages of the prompts under way, and one for each sequence that will need another,
        this one included, so that no admitted sequence is preempted for lack of pages within the
        next `page_size` steps.
        """
        if not (self._slots or without):
            return False
        page_size = self.limits.page_size
        wanted, free = pages_to_begin(sequence, page_size), self._pool.free
        for other in self._running:
            if other in without:
                free += len(other.pages)
            else:
                wanted += pages_lacking(other, page_size)
        return free >= wanted

    def _admit(self, sequence: Sequence) -> None:
        assert not sequence.in_flight, "a victim's last token must be committed first"
        self._accounts.admit(sequence)
        self._running.append(sequence)
        sequence.slot = self._slots.pop()
        sequence.rotate(self.limits.short_context, len(sequence.tokens))
        sequence.goal = len(sequence.tokens) if sequence.score_from is None else sequence.end

    def _set_sampling(self, sequence: Sequence, draft: _Draft) -> None:
        """Tell the runner how the slot samples now, unless it samples like that already."""
        slot, sampling = sequence.slot, sequence.sampling
        if sequence.score_from is not None:
            return
        if sampling.edits:
            tokens = tuple(sequence.tokens)
            draft.samplings.append(SlotSampling(slot, sampling, tokens, sequence.prompt))
        elif self._samplings[slot] != sampling:
            draft.samplings.append(SlotSampling(slot, sampling))
        self._samplings[slot] = sampling

    def _chunk(self, sequence: Sequence, draft: _Draft, blocks: int, logit_rows: int) -> None:
        """Add the next chunk of a prefill, as far as these limits and the free pages allow."""
        start = sequence.launched
        end = start + chunk_length(sequence, self.limits, self._pool.free, blocks, logit_rows)
        if end == start:
            return
        if not start:
            self._set_sampling(sequence, draft)
        missing = -(-end // self.limits.page_size) - len(sequence.pages)
        if missing > 0:
            self._grant(sequence, missing, draft)
        yields = sequence.score_from is None and end == sequence.goal
        targets: tuple[int, ...] = ()
        if end > sequence.unscored:
            targets = tuple(sequence.tokens[max(start, sequence.unscored) + 1 : end + 1])
        tokens = tuple(sequence.tokens[start:end])
        slot, long, adapter = sequence.slot, sequence.long, sequence.adapter
        row = Row(sequence.id, slot, start, tokens, yields, targets, long, adapter)
        draft.rows.append(row)
        draft.blocks -= -(-len(tokens) // self.limits.prefill_block)
        draft.logit_rows -= yields + len(targets)
        sequence.launched = end
        sequence.in_flight += yields
        if yields and sequence.guide is not None:
            draft.guided = True
        sequence.scores_launched += len(targets)
        self.prefill_tokens += len(tokens)
        if end == sequence.goal:
            self._accounts.finish_prompt(sequence)

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
        self._accounts.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages (see the module docstring on steps in flight)."""
        self._running.remove(sequence)
        self._accounts.release(sequence)
        self._slots.append(sequence.slot)
        for page in sequence.pages:
            self._pool.release(page)
        sequence.pages = []
        sequence.slot = -1
        sequence.launched = 0
