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

Tokens that a guide forces are computed together (`forced`). They are known, and count as committed,
once the row before theirs is; their own row brings their scores.

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

`Draft` makes the rows, `Allocation` holds slots and pages; here is decided who gets them.

If all layers have a sliding window, pages before it are freed while a sequence runs. If some do,
these have pages of their own, which are freed (`paging.near_pages`).

A model with LongRoPE rotates a sequence by the factors for its length at the time. One that
outgrows the short factors starts again, as if preempted, with the long ones; this happens once.
"""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.accounts import Accounts
from model_server.engine.beams.seating import Seating, found
from model_server.engine.draft import Draft
from model_server.engine.forced import ForcedRows
from model_server.engine.guessing.guessing import NO_GUESSES, Guesses, Guessing
from model_server.engine.limits import check_limits
from model_server.engine.paging.allocation import Allocation
from model_server.engine.sequence import Finish, Sequence, SequenceUpdate
from model_server.engine.timing.pace import Pace
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import (
    EngineLimits,
    Row,
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
        self.steps = 0  # scheduled
        self.prefill_tokens = 0  # computed, including recomputed ones
        self.decode_tokens = 0  # computed, including surplus ones
        self.tokens = 0  # generated
        self.preemptions = 0
        self.finished = 0
        self.cancelled = 0
        self._held = Allocation(limits)
        self._pool = self._held.pool
        self._samplings: list[Sampling | None] = [None] * limits.slots  # as the runner has them
        self._live: dict[int, Sequence] = {}
        self._running = self._held.running
        self._accounts = Accounts(limits.max_running_per_account)
        self._seating = Seating(self._held, self._accounts)
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
        assert not self._live or sequence.id > next(reversed(self._live)), "ids must increase"
        if sequence.beams is not None:
            self._seating.add(sequence)
        for each in sequence.seats or (sequence,):
            self._live[each.id] = each
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
        accounts = self._accounts
        guesses = NO_GUESSES
        if self.guessing is not None and not (accounts.waiting or accounts.unfinished):
            if self._waits_to_guess(self.guessing):
                return None
            if self.steps == self._committed:
                guesses = self.guessing.choose(self._running, self._room_to_guess)
        draft = Draft(self._held, self._samplings)
        if accounts.waiting:
            self._displace()
            self._admit_computed(draft)
        self._decode(draft, guesses)
        if accounts.unfinished or accounts.waiting:
            self._keep_pace(draft)
            self._prefill(draft)
        if not draft.rows and self.steps == self._committed and self._running:
            self._decode(draft, NO_GUESSES, late=True)
        if not draft.rows:
            return None
        self.steps += 1
        if self.guessing is not None:
            self.guessing.launched(self.steps, late=self.steps == self._committed + 1)
        for sequence in draft.chunks:
            self._held.note(sequence)
        if self._held.frees_unseen:
            self._held.free_unseen(self._seating.followed)
        self.prefill_tokens += draft.prompt_tokens
        return draft.step(self.steps)

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
                    self._redo(sequence)
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
            if sequence.guesses and not sequence.in_flight and not self._settle(sequence, row):
                continue
            if row.targets:
                updates += self._commit_targets(sequence, outcome, row)
                if sequence.id not in self._live:
                    continue
            if row.yields and sequence.seats is not None:
                updates += self._commit_beam(sequence, outcome)
            elif row.yields and (update := self._commit_token(sequence, outcome, row)):
                updates.append(update)
        return updates

    # Scheduling

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
            self._admit(sequence)
            sequence.computed = False
            draft.set_sampling(sequence)
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            self._accounts.finish_prompt(sequence)
            draft.grant(sequence, -(-sequence.goal // self.limits.page_size))

    def _waits_to_guess(self, guessing: Guessing) -> bool:
        if self.steps == self._committed:
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
        self._forced.begin(len(self._running), beside_guesses=bool(guesses))
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

    def _keep_pace(self, draft: Draft) -> None:
        blocks = self._pace.blocks(len(draft.rows))
        if blocks is not None:
            draft.blocks = min(draft.blocks, blocks)

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
        self._restart(victim)
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
                self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        if sequence.seats is not None:
            sequence = sequence.seats[0]
        for each in sequence.seats or (sequence,):
            self._release(each)
        if sequence.seats is not None:
            self._seating.lose_slots(sequence)
        sequence.since = self.steps
        self._accounts.wait(sequence)

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
            self._admit(sequence)

    def _share(self, turns: list[Sequence], draft: Draft) -> None:
        """Give each prompt an equal part of the blocks; what short ones leave goes to the others.

        Each also gets a logit row: decodes leave one for every prompt.
        """
        turns.sort(key=lambda sequence: sequence.goal - sequence.launched)
        for others in range(len(turns) - 1, -1, -1):
            sequence = turns[len(turns) - 1 - others]
            draft.chunk(sequence, draft.blocks // (others + 1), draft.logit_rows - others)
            if sequence.launched == sequence.goal:
                self._accounts.finish_prompt(sequence)

    def _admit(self, sequence: Sequence) -> None:
        self._accounts.admit(sequence)
        self._held.take(sequence)
        if sequence.seats is not None:
            self._seating.begin(sequence)

    # Committing

    def _settle(self, sequence: Sequence, row: Row) -> bool:
        assert self.guessing is not None
        right = sequence.settle(row)
        self.guessing.settled(sequence.id, right)
        return right

    def _commit_token(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> SequenceUpdate | None:
        assert outcome.token is not None, "a yielding row must give a token"
        if sequence.dropped:
            sequence.dropped -= 1
            return _scores_alone(sequence, outcome, row)
        if not sequence.takes(outcome.token):
            sequence.in_flight -= 1
            self._redo(sequence)
            return _scores_alone(sequence, outcome, row)
        self.tokens += 1
        finish = sequence.append(outcome.token)
        if sequence.slot >= 0:
            self._held.note(sequence)
        if finish:
            self._finish(sequence)
        return SequenceUpdate(sequence.id, outcome, finish, cached=max(sequence.cached, 0))

    def _commit_beam(self, sequence: Sequence, outcome: RowResult) -> list[SequenceUpdate]:
        """Return the update with the answers once the search of this seat is over."""
        self.tokens += 1
        if sequence.slot >= 0:
            self._held.note(sequence)
        answers = self._seating.commit(sequence, outcome)
        if answers is None:
            return []
        assert sequence.seats is not None
        self._finish(sequence.seats[0])
        return [found(sequence.seats[0], answers)]

    def _redo(self, sequence: Sequence) -> None:
        """Have the next token chosen anew: those of all rows in flight are dropped."""
        sequence.dropped += sequence.in_flight
        sequence.ahead = ()
        sequence.in_flight = 0
        last = len(sequence.tokens) - 1
        if sequence.slot < 0:
            return  # it was preempted, and computes its last position again anyway
        if last < sequence.kept * self.limits.page_size:
            self._restart(sequence)  # others may read that page
            return
        sequence.launched, sequence.restate = last, True
        sequence.goal = min(sequence.goal, last)

    def _commit_targets(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> list[SequenceUpdate]:
        """Return the updates for what a row scored: tokens of the prompt, or forced ones."""
        if row.start < sequence.prompt:
            update = self._commit_scores(sequence, outcome, row)
            return [update] if update else []
        self.tokens += len(row.targets)
        cached = max(sequence.cached, 0)
        updates = [SequenceUpdate(sequence.id, each, cached=cached) for each in _each(row, outcome)]
        if sequence.guide is not None and sequence.guide.finished:
            updates[-1] = replace(updates[-1], finish="complete")
            self._finish(sequence)
        return updates

    def _commit_scores(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> SequenceUpdate | None:
        """Return the update for a row's scores, if there is one for them alone.

        Those of a request that only scores, without `score_tops`, come with the last one.
        """
        assert sequence.score_from is not None
        sequence.scores_committed += len(row.targets)
        finish: Finish | None = None
        if not sequence.generates and (
            sequence.score_from + sequence.scores_committed == sequence.prompt
        ):
            self._finish(sequence)
            finish = "score"
        if sequence.generates or sequence.score_tops is not None:
            return None if row.yields else SequenceUpdate(sequence.id, outcome, finish)
        sequence.scores += outcome.target_logprobs
        if finish is None:
            return None
        scores = RowResult(target_logprobs=tuple(sequence.scores))
        return SequenceUpdate(sequence.id, scores, finish)

    def _finish(self, sequence: Sequence) -> None:
        self._remove(sequence)
        self.finished += 1

    def _remove(self, sequence: Sequence) -> None:
        for each in sequence.seats or (sequence,):
            del self._live[each.id]
            if each.slot >= 0:
                self._release(each)
            self._accounts.remove(each)
            if self.guessing is not None:
                self.guessing.forget(each.id)
        if sequence.seats is not None:
            self._seating.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages (see the module docstring on steps in flight)."""
        self._accounts.release(sequence)
        self._held.release(sequence)


def _scores_alone(sequence: Sequence, outcome: RowResult, row: Row) -> SequenceUpdate | None:
    """Return the update for the prompt's scores of a row whose token is not taken."""
    if not row.targets or row.start >= sequence.prompt:
        return None
    return SequenceUpdate(sequence.id, replace(outcome, token=None))


def _each(row: Row, outcome: RowResult) -> list[RowResult]:
    """Return the result of each forced token of a row but the first."""
    tops = outcome.target_tops or ((),) * len(row.targets)
    scored = zip(row.targets, outcome.target_logprobs, tops, strict=True)
    return [RowResult(token, logprob, top) for token, logprob, top in scored]
