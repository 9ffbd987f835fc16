"""Speculative decoding: which guesses of which sequences the next step tries. Pure.

A guess is a decode row of its own, behind the row of the token before it. Steps write all keys and
values before any row reads them, so it computes what it would have computed later, if the guess is
right; the row before it tells. Since a token is a function of logits, seed and position, answers
are the same with guesses and without.

The next guesses depend on the last token, so a step that tries any is launched after the one before
was read. While guesses do not pay for that, steps are launched ahead as always, and predictions are
only counted. A step without a spare row of a compiled size costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from model_server.engine.guessing.allotment import allot
from model_server.engine.guessing.costs import StepCosts
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

    def __init__(self, most: int, rows: int, times: StepTimes | None = None) -> None:
        """most: guesses per sequence and step. rows: decode rows of a step, at most."""
        self.proposed = 0  # guesses tried
        self.accepted = 0  # that were right
        self._most = most
        self._rows = rows
        self._costs = StepCosts(times, rows)
        self._odds = Odds()
        self._lookups: dict[int, Lookup] = {}
        # Those of the last two steps that were launched once the one before was read.
        self._late = (0, 0)

    def pays_to_wait(self, running: Seq[Sequence]) -> bool:
        """Return True if the next step should wait for the token in flight, to try guesses."""
        if not self._spare(running):
            return False
        chances = {id: row[1:] for id, row in self._chances(running, self._room).items()}
        return bool(chances and allot(chances, len(running), self._rows, self._costs, ahead=True))

    def choose(self, running: Seq[Sequence], room: Callable[[Sequence], int]) -> Guesses:
        """Return the guesses to try in the next step. No step may be in flight.

        room: how many the sequence's pages and length allow.
        """
        if not self._spare(running):
            return NO_GUESSES
        chances = self._chances(running, lambda each: min(self._most, room(each)))
        if not chances:
            return NO_GUESSES
        counts = allot(chances, len(running), self._rows, self._costs, ahead=False)
        return {id: self._lookups[id].guesses(count) for id, count in counts.items()}

    def launched(self, step: int, *, late: bool) -> None:
        """Note how a step was launched."""
        self._late = (self._late[1], step if late else 0)

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step of decodes took, from when the one before was read."""
        if len(step.rows) <= self._rows:
            self._costs.note(len(step.rows), seconds, late=step.number in self._late)

    def forget(self, id: int) -> None:
        self._lookups.pop(id, None)

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
