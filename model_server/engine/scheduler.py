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
Samples are n equal requests: those that come with the first wait one step for it. A beam is a
request whose `answer` is the parent's with one token of its own at the end, which is all that it
computes.

If all layers have a sliding window, pages before it are freed while a sequence runs.

A model with LongRoPE rotates a sequence by the factors for its length at the time. One that
outgrows the short factors starts again, as if preempted, with the long ones; this happens once.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from model_server.engine.accounts import Accounts
from model_server.engine.forced import ForcedRows
from model_server.engine.limits import check_limits
from model_server.engine.paging.prefill import chunk_length, pages_lacking, pages_to_begin
from model_server.engine.paging.prefix_cache import NOTHING, Prefix, PrefixCache
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

    __slots__ = (
        "blocks",
        "chunks",
        "copies",
        "grants",
        "guided",
        "logit_rows",
        "rows",
        "samplings",
    )

    def __init__(self, limits: EngineLimits) -> None:
        self.rows: list[Row] = []
        self.grants: list[PageGrant] = []
        self.samplings: list[SlotSampling] = []
        self.copies: list[tuple[int, int]] = []
        self.chunks: list[Sequence] = []  # whose prompts it computes in part
        self.logit_rows = limits.max_logit_rows  # still available
        self.guided = False  # a row's token is chosen under a mask
        self.blocks = 0  # prefill blocks still available: what decodes leave of the budget


class Scheduler:
    """Turns sequences into steps, and step results into updates."""

    def __init__(self, limits: EngineLimits, times: StepTimes | None = None) -> None:
        check_limits(limits)
        self.limits = limits
        self._pace = Pace(times, limits.max_mixed_blocks)
        self._forced = ForcedRows(limits, times)
        self.steps = 0  # scheduled
        self.prefill_tokens = 0  # computed, including recomputed ones
        self.decode_tokens = 0  # computed, including surplus ones
        self.tokens = 0  # generated
        self.preemptions = 0
        self.finished = 0
        self.cancelled = 0
        self.prefix_queries = 0  # tokens of admitted sequences
        self.prefix_hits = 0  # tokens of those that need not be computed
        self._caches = limits.prefix_cache != "off"
        self._cache = PrefixCache(limits.pages, limits.page_size)
        self._pool = self._cache.pool
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
    def pages_cached(self) -> int:
        """Pages that nobody holds and that others may still find."""
        return self._pool.idle

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
        if not draft.rows and self.steps == self._committed and self._running:
            self._decode(draft, late=True)
        if not draft.rows:
            return None
        self.steps += 1
        for sequence in draft.chunks:
            self._note(sequence)
        if self.limits.window is not None:
            self._free_unseen()
        return Step(
            self.steps,
            tuple(draft.rows),
            tuple(draft.grants),
            tuple(draft.samplings),
            draft.guided,
            tuple(draft.copies),
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
            if row.targets:
                updates += self._commit_targets(sequence, outcome, row)
                if sequence.id not in self._live:
                    continue
            if row.yields and (update := self._commit_token(sequence, outcome, row)):
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
            sequence.computed = False
            self._set_sampling(sequence, draft)
            sequence.launched = sequence.goal = len(sequence.tokens) - 1
            self._accounts.finish_prompt(sequence)
            self._grant(sequence, -(-sequence.goal // self.limits.page_size), draft)

    def _decode(self, draft: _Draft, *, late: bool = False) -> None:
        """Add a row for every running sequence that is past its prefill.

        late: also for those whose mask is late, for want of others.
        """
        page_size, rows = self.limits.page_size, draft.rows
        if self.limits.short_context is not None:
            self._restart_outgrown()
        if self._pool.free < len(self._running):
            self._make_room()
        forced = self._forced
        forced.begin(len(self._running))
        for sequence in self._running:
            start = sequence.launched
            if start < sequence.goal or start >= sequence.end or start == sequence.recompute_at:
                continue
            if sequence.stepwise and sequence.in_flight:
                continue
            if sequence.guide is not None and sequence.guide.late and not late:
                continue
            if start == len(sequence.pages) * page_size:
                self._grant(sequence, 1, draft)
            if sequence.guide is not None:
                draft.guided = True
                if forced.take(sequence):
                    continue
            known = sequence.stepwise
            if sequence.redone:
                known, sequence.redone = True, False
                self._set_sampling(sequence, draft)  # it counts the tokens that were dropped
            row = Row(
                sequence.id,
                sequence.slot,
                start,
                (),
                True,
                (),
                sequence.long,
                None,
                sequence.adapter,
                sequence.tokens[start] if known else -1,
            )
            rows.append(row)
            sequence.launched = start + 1
            sequence.in_flight += 1
        limits = self.limits
        draft.logit_rows -= len(rows)
        draft.blocks = (limits.token_budget - len(rows)) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            draft.blocks = min(draft.blocks, limits.max_prefill_blocks)
        self.decode_tokens += len(rows)
        for row in forced.rows:
            rows.append(row)
            draft.logit_rows -= row.logit_rows
            draft.blocks -= 1
            self.decode_tokens += row.count

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
            self._admit_waiting(draft)
            turns = self._accounts.turns(min(draft.blocks, draft.logit_rows), done)
            if not turns:
                return
            self._share(turns, draft)
            done.update(sequence.id for sequence in turns)

    def _admit_waiting(self, draft: _Draft) -> None:
        """Admit all that may be; one without prefill waits for the next step's decodes."""
        while self._slots and (sequence := self._accounts.next()):
            if sequence.computed or not self._fits(sequence) or self._defers(sequence, draft):
                return
            self._admit(sequence)

    def _defers(self, sequence: Sequence, draft: _Draft) -> bool:
        """True, once, if this step computes tokens that the sequence could reuse in the next."""
        if not self._caches or sequence.deferred or not draft.chunks:
            return False
        found = self._find(sequence)
        worth = self.limits.prefill_block + found.tokens(self.limits.page_size)
        most = sequence.reusable
        sequence.deferred = any(
            self._cache.alike(sequence, other, min(most, other.launched)) >= worth
            for other in draft.chunks
        )
        return sequence.deferred

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
        next `page_size` steps. What it shares with others that stay takes no page.
        """
        if not (self._slots or without):
            return False
        page_size, pool = self.limits.page_size, self._pool
        freed = pool.only_held_by(each.pages for each in without) if without else ()
        free = pool.free + len(freed)
        wanted = pages_to_begin(sequence, page_size)
        wanted -= sum(
            pool.holders(page) > 0 and page not in freed for page in self._find(sequence).pages
        )
        wanted += sum(
            pages_lacking(other, page_size) for other in self._running if other not in without
        )
        return free >= wanted

    def _find(self, sequence: Sequence) -> Prefix:
        if not self._caches or sequence.computed:
            return NOTHING
        sequence.rotate(self.limits.short_context, len(sequence.tokens))
        return self._cache.find(sequence, sequence.reusable)

    def _admit(self, sequence: Sequence) -> None:
        assert not sequence.in_flight, "a victim's last token must be committed first"
        found = self._find(sequence)
        self._accounts.admit(sequence)
        self._running.append(sequence)
        sequence.slot = self._slots.pop()
        positions = len(sequence.tokens) - sequence.computed
        sequence.rotate(self.limits.short_context, positions)
        sequence.goal = len(sequence.tokens) if sequence.generates else sequence.end
        if self._caches:
            self._reuse(sequence, found)

    def _reuse(self, sequence: Sequence, found: Prefix) -> None:
        """Let a sequence begin behind the tokens that were found."""
        page_size, pool = self.limits.page_size, self._pool
        for page in found.pages:
            pool.share(page)
        sequence.pages = list(found.pages)
        sequence.kept = len(found.pages)
        sequence.launched = sequence.written = sequence.kept * page_size
        if found.source and self._may_copy(found.source):
            pool.share(found.source)
            sequence.source = found.source
            sequence.launched += found.copied
        sequence.reused = sequence.launched
        if sequence.computed and self.limits.window is not None:
            # Where it was computed, pages before the window may hold other tokens by now.
            sequence.kept = (len(sequence.tokens) - 1) // page_size
        self._cache.follow(sequence)
        if sequence.cached < 0:
            sequence.cached = min(sequence.reused, sequence.prompt)
            if not sequence.computed:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += sequence.reused

    def _may_copy(self, source: int) -> bool:
        """Check that the page can be held until it is copied, beside all that is needed."""
        if self._pool.holders(source):
            return True
        page_size = self.limits.page_size
        lacking = sum(pages_lacking(other, page_size) for other in self._running)
        return self._pool.free > lacking

    def _set_sampling(self, sequence: Sequence, draft: _Draft) -> None:
        """Tell the runner how the slot samples now, unless it samples like that already."""
        slot, sampling = sequence.slot, sequence.sampling
        if not sequence.generates:
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
        begins = start == sequence.reused
        if begins:
            self._set_sampling(sequence, draft)
        missing = -(-end // self.limits.page_size) - len(sequence.pages)
        if missing > 0:
            self._grant(sequence, missing, draft, shared=begins)
        if sequence.source:
            self._copy(sequence, draft)
        yields = sequence.generates and end == sequence.goal
        targets: tuple[int, ...] = ()
        if end > sequence.unscored:
            # The prompt's: where an answer follows, its tokens were chosen and need no score.
            scored = min(end + 1, sequence.prompt)
            targets = tuple(sequence.tokens[max(start, sequence.unscored) + 1 : scored])
        tokens = tuple(sequence.tokens[start:end])
        tops = sequence.score_tops if targets else None
        slot, long, adapter = sequence.slot, sequence.long, sequence.adapter
        row = Row(sequence.id, slot, start, tokens, yields, targets, long, tops, adapter)
        draft.rows.append(row)
        draft.chunks.append(sequence)
        draft.blocks -= -(-len(tokens) // self.limits.prefill_block)
        draft.logit_rows -= row.logit_rows
        sequence.launched = end
        sequence.in_flight += yields
        if yields and sequence.guide is not None:
            draft.guided = True
        sequence.scores_launched += len(targets)
        self.prefill_tokens += len(tokens)
        if end == sequence.goal:
            self._accounts.finish_prompt(sequence)

    def _grant(
        self, sequence: Sequence, count: int, draft: _Draft, *, shared: bool = False
    ) -> None:
        """Add pages to a sequence, and those that it shares to its slot's table."""
        first = 0 if shared else len(sequence.pages)
        sequence.pages += [self._pool.allocate() for _ in range(count)]
        draft.grants.append(PageGrant(sequence.slot, first, tuple(sequence.pages[first:])))

    def _copy(self, sequence: Sequence, draft: _Draft) -> None:
        """Copy on write: its first own page begins with tokens of another's."""
        draft.copies.append((sequence.source, sequence.pages[sequence.kept]))
        self._pool.release(sequence.source)
        sequence.source = 0

    def _note(self, sequence: Sequence) -> None:
        """Offer what launched steps have written. Call with all steps launched, or at the end of
        `schedule`: who finds it runs in a later step."""
        if self._caches:
            sequence.written = min(sequence.launched, len(sequence.tokens))
            self._cache.note(sequence)

    def _free_unseen(self) -> None:
        """Free the pages that lie before the window of every later query.

        Later steps alone can be granted them. Their places in the page table keep their numbers,
        which no kernel follows: it begins at the first page that a query sees.
        """
        assert self.limits.window is not None
        for sequence in self._running:
            if sequence.launched == sequence.reused:
                continue  # the runner does not have its page table yet
            back = 0 if sequence.guide is None else 2  # positions, at most (`_redo`)
            unseen = sequence.launched + 1 - back - self.limits.window
            last = unseen // self.limits.page_size
            if self._caches:
                last = min(last, sequence.kept)
            while sequence.unseen < last:
                self._pool.release(sequence.pages[sequence.unseen])
                sequence.pages[sequence.unseen] = 0
                sequence.unseen += 1

    # Committing

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
            self._note(sequence)
        if finish:
            self._finish(sequence)
        return SequenceUpdate(sequence.id, outcome, finish, cached=max(sequence.cached, 0))

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
        sequence.launched, sequence.redone = last, True
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
        del self._live[sequence.id]
        if sequence.slot >= 0:
            self._release(sequence)
        self._accounts.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages (see the module docstring on steps in flight)."""
        self._running.remove(sequence)
        self._accounts.release(sequence)
        self._slots.append(sequence.slot)
        self._cache.release(sequence)
        if sequence.source:
            self._pool.release(sequence.source)
        sequence.pages = []
        sequence.slot = -1
        sequence.launched = sequence.reused = sequence.written = sequence.kept = 0
        sequence.unseen = 0
        sequence.source = 0
        sequence.redone = False


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
