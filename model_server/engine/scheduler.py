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

Sequences with one salt that begin alike share pages (`paging.prefix_cache`): one that is admitted
starts behind the tokens that earlier steps have written for any of them, but computes its last
token itself, and every position that it scores. Full pages are shared, since nobody writes to them
again; of a page filled in part it gets a copy (`Step.copies`), made before the step's rows run.
What is shared takes no page, and what nobody holds counts as free, so the cache never keeps anybody
from being admitted.

Tokens that a guide forces are computed together (`steps.forced`). They are known, and count as
committed, once the row before theirs is; their own row brings their scores.

A fork therefore needs no call of its own: add a request whose tokens, `prompt` and `answer`
together, begin with those of another sequence, and cancel the other at any time, before or after.
Samples are n equal requests: those that come with the first wait one step for it.

A beam search takes a slot for each of its hypotheses, all at once, and loses all of them at once
(`beams.seating`). Its hypotheses are sequences whose tokens the host chooses (`stepwise`).

With `Guessing`, a running sequence may have further rows in a step, each with a guess of the token
that the row before it gives (see `guessing.guessing`). `launched` leaves them out until `commit`
finds the guess true; what a wrong one wrote is beyond all that anybody reads, and is overwritten.
No row of a sequence is launched while guesses of it are in flight. Where a draft model guesses,
sequences get their next pages a step early if some are free: it writes there before the next step.

Images of prompts are encoded beside the steps (`encoding.encodes`): a prompt is computed up to its
first one that is not, while others go on.

`Draft` makes the rows, `LiveSequences` has the sequences with their slots and pages, `Commits`
applies results; here is decided who gets what.

If all layers have a sliding window, pages before it are freed while a sequence runs. If some do,
these have pages of their own, which are freed (`paging.near_pages`).

A model with LongRoPE rotates a sequence by the factors for its length at the time. One that
outgrows the short factors starts again, as if preempted, with the long ones; this happens once.
"""

from __future__ import annotations

from model_server.engine.encoding.row_media import whole_length
from model_server.engine.guessing.guessing import NO_GUESSES, Guesses, Guessing
from model_server.engine.limits import check_limits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.sequence import Begun, Sequence, SequenceUpdate
from model_server.engine.shares import fresh_tokens
from model_server.engine.steps.commits import UNTIMED, Commits, StepSpan
from model_server.engine.steps.draft import Draft
from model_server.engine.steps.forced import ForcedRows
from model_server.engine.steps.series import StepSeries
from model_server.engine.timing.pace import Pace
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import (
    EngineLimits,
    RowResult,
    Sampling,
    SlotMask,
    Step,
    StepResult,
)
from sax.errors import SaxError

_PATIENCE = 1  # steps that the next in line waits for a slot to come free before it gets one


class Scheduler:
    """Turns sequences into steps, and step results into updates."""

    def __init__(
        self,
        limits: EngineLimits,
        times: StepTimes | None = None,
        guessing: Guessing | None = None,
    ) -> None:
        """guessing: None: no tokens are guessed."""
        check_limits(limits)
        self.limits = limits
        self.guessing = guessing
        self._reach = guessing.reach if guessing is not None else 0
        self._pace = Pace(times, limits.max_mixed_blocks)
        self._forced = ForcedRows(limits, times)
        self._series = StepSeries(limits)
        self.prefill_tokens = 0  # computed, including recomputed ones
        self.decode_tokens = 0  # computed, including surplus ones
        self.preemptions = 0
        self.cancelled = 0
        self._samplings: list[Sampling | None] = [None] * limits.slots  # as the runner has them
        self._live = LiveSequences(limits)
        self._commits = Commits(self._live, guessing)
        self._held = self._live.held
        self._media = self._held.media
        self._pool = self._held.pool
        self._running = self._held.running
        self._accounts = self._live.accounts

    @property
    def steps(self) -> int:
        """Steps scheduled."""
        return self._live.steps

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return self._commits.tokens

    @property
    def finished(self) -> int:
        return self._commits.finished

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
        return self.limits.slots - self._held.slots_free

    @property
    def pages_used(self) -> int:
        return self._pool.used

    @property
    def near_pages_used(self) -> int:
        """Pages of the layers with a window, if they have their own."""
        return self._held.near.pool.used if self._held.near else 0

    @property
    def pages_cached(self) -> int:
        """Pages that nobody holds and that others may still find."""
        return self._pool.idle

    @property
    def prefix_queries(self) -> int:
        return self._held.prefix_queries

    @property
    def prefix_hits(self) -> int:
        return self._held.prefix_hits

    @property
    def prefix_evictions(self) -> int:
        return self._pool.evictions

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
        self._live.add(sequence)

    def encode(self) -> EncodeBatch | None:
        """Return the images to encode behind the last step that was scheduled, if any."""
        return self._media.next_batch(self._running) if self._media is not None else None

    def cancel(self, id: int) -> bool:
        """Drop a live sequence and free its slot and pages; return False if it is not live."""
        sequence = self._live.get(id)
        if sequence is None:
            return False
        self._commits.remove(sequence)
        self.cancelled += 1
        return True

    def begun(self) -> list[Begun]:
        """Return how far each live sequence is."""
        return self._live.begun()

    def cancel_all(self) -> list[int]:
        return [id for id in self._live.ids if self.cancel(id)]

    def schedule(self, now_s: float = 0.0) -> Step | None:
        """Return the next step, or None if nothing can be launched before the next commit.

        now_s: noted of the sequences that it starts; decides nothing.
        """
        self._live.now_s = now_s
        accounts = self._accounts
        guesses = NO_GUESSES
        if self.guessing is not None and not (accounts.waiting or accounts.unfinished):
            if self._waits_to_guess(self.guessing):
                return None
            if self.steps == self._commits.steps:
                guesses = self.guessing.choose(self._running, self._room_to_guess)
        draft = Draft(self._held, self._samplings, self._media)
        if accounts.waiting:
            self._displace()
            self._admit_computed(draft)
        self._decode(draft, guesses)
        if accounts.unfinished or accounts.waiting:
            self._keep_pace(draft)
            self._prefill(draft)
        if not draft.rows and accounts.waiting:
            # A sequence that is recomputed gave up its slot after the others were admitted.
            self._admit_computed(draft)
            self._decode(draft, guesses)
        if not draft.rows and self.steps == self._commits.steps and self._running:
            self._decode(draft, NO_GUESSES, late=True)
        if not draft.rows:
            return None
        self._live.steps += 1
        if self.guessing is not None:
            self.guessing.launched(self.steps, late=self.steps == self._commits.steps + 1)
        for sequence in draft.chunks:
            self._held.note(sequence)
            if self._media is not None:
                self._media.launched(sequence)
        if self._held.frees_unseen:
            self._held.free_unseen(self._live.seating.followed)
        self.prefill_tokens += draft.prompt_tokens
        return draft.step(self.steps)

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
        if self._accounts.waiting or self._accounts.unfinished or self._reach:
            return False
        if not self._series.begins_with(step, self._running, self._pool.free):
            return False
        return self.guessing is None or not self.guessing.pays_to_wait(self._running)

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
            if sequence.guide.finished:
                continue  # by forced tokens: whatever is chosen after them is dropped
            try:
                if mask := sequence.guide.mask():
                    masks.append(SlotMask(row.slot, mask))
                else:
                    self._commits.redo(sequence)
            except SaxError as error:
                self.cancel(sequence.id)
                failed.append(SequenceUpdate(sequence.id, RowResult(), error=error))
        return masks, failed

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""
        self._pace.took(step, seconds)
        self._series.took(step, seconds)
        if self.guessing is not None and step.rows[-1].is_decode:
            self.guessing.took(step, seconds)

    def commit(
        self, step: Step, result: StepResult, span: StepSpan = UNTIMED
    ) -> list[SequenceUpdate]:
        """Apply the results of a step. Steps must be committed in the order they were scheduled.

        span: told in the updates.
        """
        return self._commits.commit(step, result, span)

    def _displace(self) -> None:
        """Preempt for the next in line, if that gives it a slot and its pages."""
        if not self._accounts.uneven:
            return
        sequence = self._accounts.next()
        if sequence is None or self.steps - sequence.since < _PATIENCE or self._held.fits(sequence):
            return
        victims: list[Sequence] = []
        for victim in self._accounts.displaceable(sequence):
            victims.append(victim)
            if self._held.fits(sequence, victims):
                for each in victims:
                    self._preempt(each)
                return

    def _admit_computed(self, draft: Draft) -> None:
        """Admit those next in line that need no prefill.

        Neither budget nor logit rows can be short: they hold a decode for every slot.
        """
        while self._held.slots_free and (sequence := self._accounts.next()) and sequence.computed:
            if not self._held.fits(sequence):
                return
            self._live.admit(sequence)
            sequence.computed = False
            draft.set_sampling(sequence)
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            self._accounts.finish_prompt(sequence)
            draft.grant(sequence, -(-sequence.goal // self.limits.page_size))

    def _waits_to_guess(self, guessing: Guessing) -> bool:
        if self.steps == self._commits.steps:
            return False
        tried = any(sequence.guesses for sequence in self._running)
        return tried or guessing.pays_to_wait(self._running)

    def _room_to_guess(self, sequence: Sequence) -> int:
        """Return how many guesses fit behind the next row: in its pages, and its rotary factors.

        It takes a new page early if there is one for everybody.
        """
        start, page_size = sequence.launched, self.limits.page_size
        pages = len(sequence.pages) + (self._pool.free > len(self._running))
        ends = [sequence.end, max(start + 1, pages * page_size)]
        if sequence.recompute_at >= 0:
            ends.append(sequence.recompute_at)
        return max(0, min(ends) - start - 1)

    def _decode(self, draft: Draft, guesses: Guesses, *, late: bool = False) -> None:
        """Add a row for every running sequence that is past its prefill.

        late: also for those whose mask is late, for want of others.
        """
        if self.limits.short_context is not None:
            self._restart_outgrown()
        if self._pool.free < len(self._running):
            self._make_room()
        reserved = self._reserved_blocks()
        self._forced.begin(len(self._running), beside_guesses=bool(guesses), reserved=reserved)
        for sequence in self._running:
            start = sequence.launched
            if start < sequence.goal or start >= sequence.end or start == sequence.recompute_at:
                continue
            if sequence.guesses or (sequence.stepwise and start >= len(sequence.tokens)):
                continue  # its next token is not known
            if sequence.guide is not None and sequence.guide.late and not late:
                continue
            draft.reach(sequence)
            if sequence.guide is not None:
                draft.guided = True
                if self._forced.take(sequence):
                    continue
            draft.decode(sequence)
            if guesses and sequence.id in guesses:
                draft.guess(sequence, guesses[sequence.id])
            if self._reach:
                draft.reach_ahead(sequence, self._reach)
        draft.leave_blocks(self._forced.rows)
        self.decode_tokens += sum(row.count for row in draft.rows)

    def _reserved_blocks(self) -> int:
        """Return the blocks of an image next in a prompt that one chunk must hold.

        Forced tokens leave them to it: streams of these could keep it waiting for ever.
        """
        if self._media is None or not self._media.limits.bidirectional:
            return 0
        waiting = [each for each in self._running if each.media and each.launched < each.goal]
        tokens = max((whole_length(each, each.launched) for each in waiting), default=0)
        return -(-tokens // self.limits.prefill_block)

    def _keep_pace(self, draft: Draft) -> None:
        blocks = self._pace.blocks(len(draft.rows))
        if blocks is not None:
            draft.keep_pace(blocks)

    def _make_room(self) -> None:
        """Preempt until every sequence that decodes into a new page can have one."""
        page_size = self.limits.page_size
        while self._pool.free < sum(
            sequence.goal <= sequence.launched < sequence.end
            and sequence.launched != sequence.recompute_at
            and sequence.launched >= len(sequence.pages) * page_size
            and not (sequence.stepwise and sequence.launched >= len(sequence.tokens))
            for sequence in self._running
        ):
            self._preempt(self._accounts.victim())

    def _preempt(self, victim: Sequence) -> None:
        """Free slot and pages; tokens in flight are still committed when they arrive."""
        self._live.restart(victim)
        self.preemptions += 1

    def _restart_outgrown(self) -> None:
        """Queue again what outgrew the short rotary factors, once its last token is known."""
        outgrown = [
            each
            for each in self._running
            if len(each.tokens) > each.launched == each.recompute_at >= each.goal
        ]
        for sequence in outgrown:
            if sequence.slot >= 0:
                self._live.restart(sequence)

    def _prefill(self, draft: Draft) -> None:
        """Give each account in turn a chunk, and admit more as long as blocks are left."""
        done: set[int] = set()
        while draft.blocks and draft.logit_rows:
            self._admit_waiting(draft)
            turns = self._accounts.turns(min(draft.blocks, draft.logit_rows), done)
            if not turns:
                return
            self._share(turns, draft)
            done.update(sequence.id for sequence in turns)

    def _admit_waiting(self, draft: Draft) -> None:
        """Admit all that may be; one without prefill waits for the next step's decodes."""
        while self._held.slots_free and (sequence := self._accounts.next()):
            if sequence.computed or not self._held.fits(sequence):
                return
            if self._held.should_wait(sequence, draft.chunks):
                return
            self._live.admit(sequence)

    def _share(self, turns: list[Sequence], draft: Draft) -> None:
        """Give each prompt an equal part of the blocks; what short ones leave goes to the others.

        Each also gets a logit row: decodes leave one for every prompt.
        """
        turns.sort(key=self._order)
        for others in range(len(turns) - 1, -1, -1):
            sequence = turns[len(turns) - 1 - others]
            draft.chunk(sequence, draft.blocks // (others + 1), draft.logit_rows - others)
            if sequence.launched == sequence.goal:
                self._accounts.finish_prompt(sequence)
                share = self._accounts.share(sequence, len(self._running))
                self._pace.begin(fresh_tokens(sequence), share)

    def _order(self, sequence: Sequence) -> tuple[bool, int]:
        """Those first that are in front of an image which one chunk must hold, then short ones."""
        whole = sequence.media and self._media is not None and self._media.limits.bidirectional
        in_front = bool(whole) and whole_length(sequence, sequence.launched) > 0
        return not in_front, sequence.goal - sequence.launched
