"""Speculative decoding: which draft tokens of which sequences the next step tries. Pure.

A draft token is a decode row of its own, behind the row of the token before it. Steps write all
keys and values before any row reads them, so it computes what it would have computed later, if the
draft token is right; the row before it tells. Since a token is a function of logits, seed and
position, answers are the same with draft tokens and without.

The next draft tokens depend on the last token, so a step that tries any is launched after the one
before was read. While draft tokens do not pay for that, steps are launched ahead as always, and
predictions are only counted. A step without a spare row of a compiled size costs nothing here.

Draft tokens come from the text so far (`lookup`), from parts that know what comes next, and, if
there is one, from a draft model (`drafts`), for each sequence from what is more likely to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from model_server.engine.drafting.drafts import (
    Allotment,
    Chances,
    Drafts,
    Odds,
    StepCosts,
    allot,
    allot_drafted,
)
from model_server.engine.part import EnginePart
from model_server.engine.running.ops import Propose, Runner
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Row, RowResult, Step

_LEAST = 0.05  # chance of a draft token that is looked at
_READ = 512  # tokens of prompts that one step takes in, so that it stays short

DraftTokens = Mapping[int, tuple[int, ...]]  # by sequence id
REACH = 8192  # tokens before the first lookup that it reads, at most
_BITS = 20  # of a token in a key; larger vocabularies may collide, which costs a wrong draft token
_KEY = (1 << 3 * _BITS) - 1


class Drafting(EnginePart[int]):
    """Draft tokens of one engine's sequences, and what they have cost and gained.

    Of a sequence it keeps how many are in flight. The host chooses each token of a beam search, so
    these are not drafted.
    """

    def __init__(
        self,
        most: int,
        rows: int,
        times: StepTimes | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        """most: draft tokens per sequence and step. rows: decode rows of a step, at most.

        drafts: None: there is no draft model.
        """
        super().__init__()
        self.proposed = 0  # draft tokens tried
        self.accepted = 0  # that were right
        self._most = most
        self._rows = rows
        self._costs = StepCosts(times, rows)
        self._drafts = drafts
        self._odds = Odds()
        self._lookups: dict[int, Lookup] = {}
        self._next: DraftTokens = {}  # of the step that is being made
        self._begins: dict[int, int] = {}  # position of each sequence's first one in flight
        # Those of the last two steps that were launched once the one before was read.
        self._late = (0, 0)

    @property
    def asks(self) -> bool:
        """True if `plan` may wait for a device."""
        return self._drafts is not None

    @property
    def reach(self) -> int:
        """Positions behind the next step that should have pages, where some are free."""
        return self._most if self._drafts is not None else 0

    # Of a sequence

    def begin(self, sequence: Sequence) -> int | None:
        return 0 if sequence.request.beams is None else None

    def waits(self, sequence: Sequence, *, late: bool) -> bool:
        return self.of[sequence.id] > 0

    def is_stepwise(self, sequence: Sequence) -> bool:
        return self.of[sequence.id] > 0

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        """Take a draft token's row out of flight; drop its result if the draft token was wrong.

        A right one counts as if it had been launched once its token was known.
        """
        if not self.of[sequence.id] or row.start < self._begins[sequence.id]:
            return False
        assert not sequence.in_flight, "the row before a draft token was not read"
        self.of[sequence.id] -= 1
        last = len(sequence.tokens) - 1
        right = row.start == last and row.given == sequence.tokens[last]
        if right:
            sequence.in_flight += 1
            if sequence.slot >= 0:
                sequence.launched += 1
        self._settled(sequence.id, right)
        return not right

    def ended(self, sequence: Sequence) -> None:
        super().ended(sequence)
        self._lookups.pop(sequence.id, None)
        self._begins.pop(sequence.id, None)
        if self._drafts is not None:
            self._drafts.forget(sequence.id)

    # Of steps

    def plan(self) -> bool:
        """Choose the draft tokens to try, unless prompts wait; False: wait for the last token.

        Waits for those of the draft model.
        """
        live, self._next = self.live, {}
        if live.accounts.waiting or live.accounts.unfinished:
            return True
        if live.steps != live.committed:
            return not (any(self.of.values()) or self.pays_to_wait())
        self._next = self._allowed(self.choose())
        return True

    def before_rows(self, step: StepBuilder, *, late: bool) -> None:
        if late:
            self._next = {}
        step.only_decodes = bool(self._next)

    def decoded(self, sequence: Sequence, step: StepBuilder) -> None:
        """Add a row for each draft token, and pages for the draft model's next ones."""
        if draft_tokens := self._next.get(sequence.id):
            self._try(sequence, draft_tokens, step)
        if self.reach:
            self._reach_ahead(sequence, step)

    def scheduled(self, step: StepBuilder) -> None:
        late = self.live.steps == self.live.committed + 1
        self._late = (self._late[1], self.live.steps if late else 0)

    def allows_series(self) -> bool:
        return not self.reach and not self.pays_to_wait()

    def took(self, step: Step, seconds: float) -> None:
        if not step.rows[-1].is_decode:
            return
        if self._drafts is not None:
            seconds -= self._drafts.take_spent()
        if len(step.rows) <= self._rows:
            self._costs.note(len(step.rows), seconds, late=step.number in self._late)

    def _try(self, sequence: Sequence, draft_tokens: tuple[int, ...], step: StepBuilder) -> None:
        held = self.live.held
        self._begins[sequence.id] = sequence.launched
        for start, token in enumerate(draft_tokens, sequence.launched):
            if start == len(sequence.pages) * self.limits.page_size:
                if held.pool.free <= len(held.running):
                    return  # others took pages since
                step.grant(sequence, 1)
            step.repeat(start, token)
            self.of[sequence.id] += 1

    def _reach_ahead(self, sequence: Sequence, step: StepBuilder) -> None:
        """See that positions behind all of its rows have pages, as far as some are free."""
        held, page_size = self.live.held, self.limits.page_size
        behind = sequence.launched + self.of.get(sequence.id, 0) + self.reach
        missing = -(-min(behind, sequence.end) // page_size) - len(sequence.pages)
        more = min(missing, held.pool.free - len(held.running))
        if more > 0:
            step.grant(sequence, more)

    def pays_to_wait(self) -> bool:
        """Return True if the next step should wait for the token in flight, to try draft tokens."""
        if not self._spare():
            return False
        looked = {id: row[1:] for id, row in self._chances(self._room_ahead).items()}
        drafted = self._drafted(lambda _: self._most)
        pays = bool(self._allot(looked, drafted, ahead=True).counts)
        if self._drafts is not None and not pays:
            self._drafts.rest()
        return pays

    def choose(self) -> DraftTokens:
        """Return the draft tokens to try in the next step. No step may be in flight."""
        if not self._spare():
            return {}
        looked = self._chances(self.room)
        drafted = self._drafted(self.room, paged=True)
        counts, by_draft = self._allot(looked, drafted, ahead=False)
        if self._drafts is not None:
            self._drafts.begin()
        running = self.live.running
        made = {
            each.id: self._lookups[each.id].draft_tokens(counts[each.id], _coming(each))
            for each in running
            if each.id in counts and each.id not in by_draft
        }
        if self._drafts is not None and by_draft:
            asked = [(each, counts[each.id]) for each in running if each.id in by_draft]
            made |= self._drafts.draft_tokens(asked)
        return made

    def _allowed(self, made: DraftTokens) -> DraftTokens:
        """Cut draft tokens where a part says that they cannot come next."""
        cut: dict[int, tuple[int, ...]] = {}
        for sequence in self.draftable if made else ():
            tokens = made.get(sequence.id, ())
            for part in sequence.parts:
                tokens = part.drafts(sequence, tokens)
            if tokens:
                cut[sequence.id] = tokens
        return cut

    def _settled(self, id: int, right: bool) -> None:
        """Count a sequence's next draft token that was tried."""
        self.proposed += 1
        self.accepted += right
        if self._drafts is not None:
            self._drafts.note(id, right)

    def _allot(self, looked: Chances, drafted: Chances, *, ahead: bool) -> Allotment:
        decodes, costs = len(self.live.running), self._costs
        rows = min(self._rows, decodes + (self.limits.draft_states or self._rows))
        if self._drafts is not None and drafted:
            draft_s = self._drafts.seconds(decodes)
            return allot_drafted(looked, drafted, decodes, rows, costs, draft_s, ahead=ahead)
        return Allotment(allot(looked, decodes, rows, costs, ahead=ahead) if looked else {})

    def _drafted(self, room: Callable[[Sequence], int], *, paged: bool = False) -> Chances:
        """Return the draft model's chances; paged: as far as pages that are there allow."""
        drafts, running = self._drafts, self.draftable
        if drafts is None:
            return {}
        if not paged:
            return drafts.chances(running, room)
        return drafts.chances(running, lambda each: min(room(each), drafts.reach(each)))

    def _spare(self) -> bool:
        return 0 < len(self.live.running) < self._rows

    @property
    def draftable(self) -> list[Sequence]:
        return [each for each in self.live.running if each.id in self.of]

    def _room_ahead(self, sequence: Sequence) -> int:
        return self._most + 1

    def room(self, sequence: Sequence) -> int:
        """Return how many draft tokens may be tried behind the next row, in the pages that it has.

        It takes a new page early if there is one for everybody.
        """
        start, held, page_size = sequence.launched, self.live.held, self.limits.page_size
        pages = len(sequence.pages) + (held.pool.free > len(held.running))
        end = min(sequence.limit, max(start + 1, pages * page_size))
        return min(self._most, max(0, end - start - 1))

    def _chances(self, room: Callable[[Sequence], int]) -> dict[int, list[float]]:
        left = _READ
        made: dict[int, list[float]] = {}
        for sequence in self.draftable:
            lookup = self._lookups.get(sequence.id)
            if lookup is None:
                lookup = Lookup(sequence.tokens, sequence.prompt, Odds(self._odds))
                self._lookups[sequence.id] = lookup
            left -= lookup.read(left)
            chances = lookup.chances(room(sequence), _coming(sequence))
            if chances and chances[0] >= _LEAST:
                made[sequence.id] = chances
        return made


def _coming(sequence: Sequence) -> tuple[int, ...]:
    """Return the tokens that a part knows to come next."""
    return next((tokens for part in sequence.parts if (tokens := part.coming(sequence))), ())


class Lookup:
    """Predicts the next tokens of one sequence from what followed its last tokens earlier.

    Answers repeat their prompts and themselves: quotations, code that is edited, lists, names. A
    table says where each run of three tokens occurred last. The place that it names is followed for
    as long as its tokens are those that come, so a long repetition is looked up once. Each token is
    taken in once, at the cost of one look into the table.
    """

    def __init__(self, tokens: list[int], prompt: int, odds: Odds) -> None:
        """tokens: the sequence's own list, which grows; the first `prompt` are not predictions."""
        self._tokens = tokens
        self._prompt = prompt
        self._odds = odds
        self._read = max(0, len(tokens) - REACH)  # tokens taken in
        self._after: dict[int, int] = {}  # three tokens -> index of the one that followed last
        self._key = _KEY  # of no tokens
        self._next = -1  # index of the token that is expected to come again; -1: none
        self._run = 0  # predictions in a row that were right
        self._media = False  # some tokens are those of images

    @property
    def behind(self) -> int:
        """Tokens not taken in yet."""
        return len(self._tokens) - self._read

    def read(self, most: int) -> int:
        """Take in new tokens, at most so many; return their number."""
        first = self._read
        self._read = min(len(self._tokens), first + most)
        for index in range(first, self._read):
            self._take(index, self._tokens[index])
        return self._read - first

    def _take(self, index: int, token: int) -> None:
        expected, self._media = self._next, self._media or token < 0
        right = expected >= 0 and self._tokens[expected] == token
        if expected >= 0 and index >= self._prompt:
            self._odds.note(self._run, right)
        self._key = (self._key << _BITS | token) & _KEY
        if right:
            self._next, self._run = expected + 1, self._run + 1
        else:
            self._next, self._run = self._after.get(self._key, -1), 0
        self._after[self._key] = index + 1

    def chances(self, most: int, sure: tuple[int, ...] = ()) -> list[float]:
        """Return for each next draft token the chance that it and those before it are right.

        sure: tokens that surely come next, which are predicted whatever came earlier.
        """
        certain = [1.0] * min(len(sure), most)
        if most <= len(sure) or self._next < 0 or self.behind:
            return certain
        if sure and self._predicted(len(sure)) != sure:
            return certain
        most = self._reach(most) if self._media else most
        return certain + self._odds.of_runs(self._run + len(sure), most - len(sure))

    def _reach(self, most: int) -> int:
        """Return how many of the next tokens may be drafted: none from an image on."""
        first, known = self._next, len(self._tokens)
        for place in range(min(most, known - first)):
            if self._tokens[first + place] < 0:
                return place
        return most

    def draft_tokens(self, count: int, sure: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return so many of the next tokens, of which `chances` told the odds."""
        if count <= len(sure):
            return sure[:count]
        return sure + self._predicted(count)[len(sure) :]

    def _predicted(self, count: int) -> tuple[int, ...]:
        """Return so many of the next tokens; beyond the last known one they repeat."""
        first, known = self._next, len(self._tokens)
        return tuple(self._tokens[first + place % (known - first)] for place in range(count))


def drafting_of(runner: Runner, times: StepTimes | None) -> Drafting | None:
    """Return the drafting of a runner's engine; None if its limits allow no draft tokens."""
    limits = runner.limits
    if not limits.draft_tokens:
        return None
    drafts = Drafts(runner, limits.page_size) if runner.ops.get(Propose) else None
    return Drafting(limits.draft_tokens, limits.decodes, times, drafts)
