"""Speculative decoding: which guesses of which sequences the next step tries. Pure.

A guess is a decode row of its own, behind the row of the token before it. Steps write all keys and
values before any row reads them, so it computes what it would have computed later, if the guess is
right; the row before it tells. Since a token is a function of logits, seed and position, answers
are the same with guesses and without.

The next guesses depend on the last token, so a step that tries any is launched after the one before
was read. While guesses do not pay for that, steps are launched ahead as always, and predictions are
only counted. A step without a spare row of a compiled size costs nothing here.

Guesses come from the text so far (`lookup`) and, if there is one, from a draft model (`drafts`),
for each sequence from what is more likely to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from model_server.engine.guessing.allotment import Allotment, Chances, allot, allot_drafted
from model_server.engine.guessing.costs import StepCosts
from model_server.engine.guessing.drafts import Drafts
from model_server.engine.guessing.lookup import Lookup
from model_server.engine.guessing.odds import Odds
from model_server.engine.sequence import Sequence
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import Step

_LEAST = 0.05  # chance of a guess that is looked at
_READ = 512  # tokens of prompts that one step takes in, so that it stays short

Guesses = Mapping[int, tuple[int, ...]]  # by sequence id
NO_GUESSES: Guesses = {}


class Guessing:
    """Guesses of one engine's sequences, and what they have cost and gained."""

    def __init__(
        self,
        most: int,
        rows: int,
        times: StepTimes | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        """most: guesses per sequence and step. rows: decode rows of a step, at most.

        drafts: None: there is no draft model.
        """
        self.proposed = 0  # guesses tried
        self.accepted = 0  # that were right
        self._most = most
        self._rows = rows
        self._costs = StepCosts(times, rows)
        self._drafts = drafts
        self._odds = Odds()
        self._lookups: dict[int, Lookup] = {}
        # Those of the last two steps that were launched once the one before was read.
        self._late = (0, 0)

    @property
    def waits(self) -> bool:
        """True if `choose` may wait for a device."""
        return self._drafts is not None

    @property
    def reach(self) -> int:
        """Positions behind the next step that should have pages, where some are free."""
        return self._most if self._drafts is not None else 0

    def pays_to_wait(self, running: Seq[Sequence]) -> bool:
        """Return True if the next step should wait for the token in flight, to try guesses."""
        if not self._spare(running):
            return False
        looked = {id: row[1:] for id, row in self._chances(running, self._room).items()}
        drafted = self._drafted(running, lambda _: self._most)
        pays = bool(self._allot(running, looked, drafted, ahead=True).counts)
        if self._drafts is not None and not pays:
            self._drafts.rest()
        return pays

    def choose(self, running: Seq[Sequence], room: Callable[[Sequence], int]) -> Guesses:
        """Return the guesses to try in the next step. No step may be in flight.

        room: how many the sequence's pages and length allow. Waits for those of the draft model.
        """
        if not self._spare(running):
            return NO_GUESSES
        looked = self._chances(running, lambda each: min(self._most, room(each)))
        drafted = self._drafted(running, lambda each: min(self._most, room(each)), paged=True)
        counts, by_draft = self._allot(running, looked, drafted, ahead=False)
        if self._drafts is not None:
            self._drafts.begin()
        made = {
            id: self._lookups[id].guesses(count)
            for id, count in counts.items()
            if id not in by_draft
        }
        if self._drafts is not None and by_draft:
            asked = [(each, counts[each.id]) for each in running if each.id in by_draft]
            made |= self._drafts.guesses(asked)
        return made

    def settled(self, id: int, right: bool) -> None:
        """Count a sequence's next guess that was tried."""
        self.proposed += 1
        self.accepted += right
        if self._drafts is not None:
            self._drafts.note(id, right)

    def launched(self, step: int, *, late: bool) -> None:
        """Note how a step was launched."""
        self._late = (self._late[1], step if late else 0)

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step of decodes took, from when the one before was read."""
        if self._drafts is not None:
            seconds -= self._drafts.take_spent()
        if len(step.rows) <= self._rows:
            self._costs.note(len(step.rows), seconds, late=step.number in self._late)

    def forget(self, id: int) -> None:
        self._lookups.pop(id, None)
        if self._drafts is not None:
            self._drafts.forget(id)

    def _allot(
        self, running: Seq[Sequence], looked: Chances, drafted: Chances, *, ahead: bool
    ) -> Allotment:
        decodes, rows, costs = len(running), self._rows, self._costs
        if self._drafts is not None and drafted:
            draft_s = self._drafts.seconds(decodes)
            return allot_drafted(looked, drafted, decodes, rows, costs, draft_s, ahead=ahead)
        return Allotment(allot(looked, decodes, rows, costs, ahead=ahead) if looked else {})

    def _drafted(
        self, running: Seq[Sequence], room: Callable[[Sequence], int], *, paged: bool = False
    ) -> Chances:
        """Return the draft model's chances; paged: as far as pages that are there allow."""
        drafts = self._drafts
        if drafts is None:
            return {}
        if not paged:
            return drafts.chances(running, room)
        return drafts.chances(running, lambda each: min(room(each), drafts.reach(each)))

    def _spare(self, running: Seq[Sequence]) -> bool:
        return 0 < len(running) < self._rows

    def _room(self, sequence: Sequence) -> int:
        return self._most + 1

    def _chances(
        self, running: Seq[Sequence], room: Callable[[Sequence], int]
    ) -> dict[int, list[float]]:
        left = _READ
        made: dict[int, list[float]] = {}
        for sequence in running:
            if not sequence.guessable or sequence.stepwise:
                continue
            lookup = self._lookups.get(sequence.id)
            if lookup is None:
                lookup = Lookup(sequence.tokens, sequence.prompt, Odds(self._odds))
                self._lookups[sequence.id] = lookup
            left -= lookup.read(left)
            chances = lookup.chances(room(sequence))
            if chances and chances[0] >= _LEAST:
                made[sequence.id] = chances
        return made
