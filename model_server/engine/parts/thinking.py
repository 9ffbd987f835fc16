"""Budgets of reasoning: the tokens between the marks that divide an answer are counted, and where
they are used up the closing mark comes next. Pure.

The tokens of the mark are chosen as all others are, on the device, from a list of one: so their
log-probabilities are true and penalties count them. The row that chooses one waits until the token
before it was read. Under a grammar its mask allows the mark alone, once it allows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

import msgspec

from model_server.engine.part import EnginePart
from model_server.engine.request import SequenceUpdate
from model_server.engine.sequence import Sequence
from model_server.engine.types import GrammarState, Row, Sampling

# For a model that begins to reason again: more than are ever computed before one of them was read,
# so that where it ends does not depend on what else is computed.
_AGAIN = 32
_MOST_BLANK = 64  # bytes before the first opening mark


class ReasoningForm(msgspec.Struct, frozen=True):
    """The marks around an answer's reasoning, and whether the prompt has opened it."""

    opens: bytes  # text of the opening mark
    closes: bytes  # and of the closing one
    is_open: bool  # the prompt ends inside the reasoning
    text_of: Callable[[int], bytes]  # of a token, control tokens included


class ThinkingBudget(msgspec.Struct, frozen=True):
    """The most tokens that an answer may reason, and the tokens that end it."""

    most: int  # tokens between the marks
    ends: tuple[int, ...]  # tokens that end the reasoning; the closing mark is among their text
    form: ReasoningForm


class ReasoningTrack:
    """Follows one answer from mark to mark, and counts the tokens between them."""

    def __init__(self, form: ReasoningForm) -> None:
        self.open = form.is_open
        self.first = not form.is_open  # so far the answer may be about to begin to reason
        self.tokens = 0  # of reasoning, without the marks
        self._form = form
        self._tail = b""  # the last bytes since the last mark

    def take(self, token: int) -> None:
        """Take in the next token."""
        self._tail += self._form.text_of(token)
        if self.open:
            self.open = not self._passed(self._form.closes)
            self.tokens += self.open
        elif self._passed(self._form.opens):
            self.open, self.first = True, False
        elif self.first:
            begun = self._tail.lstrip()
            self.first = self._form.opens.startswith(begun) and len(self._tail) < _MOST_BLANK

    def _passed(self, mark: bytes) -> bool:
        """Return True if the last token completed a mark, and forget what is before its end."""
        place = self._tail.find(mark)
        if place >= 0:
            self._tail = self._tail[place + len(mark) :]
        elif not self.first:
            self._tail = self._tail[-len(mark) :]
        return place >= 0


class Thoughts:
    """Follows one answer, and says when its reasoning must end."""

    def __init__(self, budget: ThinkingBudget, answer: Iterable[int] = ()) -> None:
        """answer: its tokens so far."""
        self._track = ReasoningTrack(budget.form)
        self._ends = budget.ends
        self._left = budget.most
        self._ending: tuple[int, ...] = ()  # what is left of the tokens that end the reasoning
        for token in answer:
            self.take(token)

    @property
    def room(self) -> int | None:
        """Tokens that surely come before one is given; None: none is given unless marks come."""
        if self.next is not None:
            return 0
        if self._track.open:
            return self._left
        return 1 + self._left if self._track.first else None

    @property
    def next(self) -> int | None:
        """The token that must come next; None: any may."""
        return next(iter(self._given), None)

    @property
    def _given(self) -> tuple[int, ...]:
        return self._ending or (self._ends if self._track.open and self._left <= 0 else ())

    def take(self, token: int) -> None:
        """Take in the next token."""
        given, track = self._given, self._track
        was_open, first = track.open, track.first
        track.take(token)
        self._ending = given[1:] if given[:1] == (token,) else ()
        if was_open:
            self._left -= not given
        elif track.open and not first:
            self._left = max(self._left, _AGAIN)

    def branched(self) -> Thoughts:
        """Return the same, to go on by itself."""
        made = copy.copy(self)
        made._track = copy.copy(self._track)
        return made

    def skip(self) -> None:
        """Note that the token that must come next cannot."""
        self._ending = ()


class BoundedThinking(EnginePart[Thoughts]):
    """Ends the reasoning of answers without a grammar; those with one have a `BoundedState`."""

    def begin(self, sequence: Sequence) -> Thoughts | None:
        request = sequence.request
        budget = request.setting(ThinkingBudget)
        if budget is None or request.grammar is not None:
            return None
        return Thoughts(budget, request.answer)

    def prepare(self, sequence: Sequence) -> None:
        sequence.sampling = _sampling(sequence, self.of[sequence.id].next)

    def limit(self, sequence: Sequence, end: int) -> int:
        room = self.of[sequence.id].room
        return end if room is None else min(end, len(sequence.tokens) + room - 1)

    def waits(self, sequence: Sequence, *, late: bool) -> bool:
        room = self.of[sequence.id].room
        return room is not None and 0 < sequence.in_flight >= room

    def row(self, sequence: Sequence) -> Row | None:
        sampling = _sampling(sequence, self.of[sequence.id].next)
        if sampling is not sequence.sampling:
            sequence.sampling, sequence.stated = sampling, True
        return None

    def tell(self, sequence: Sequence, update: SequenceUpdate) -> SequenceUpdate:
        if update.result.token is not None:
            self.of[sequence.id].take(update.result.token)
        return update


def _sampling(sequence: Sequence, given: int | None) -> Sampling:
    """Return how a sequence samples its next token, which may be given."""
    own = sequence.request.sampling
    if given is None:
        return own
    return Sampling(0.0, 0, 1.0, own.seed, own.logprobs, allowed=(given,))


class BoundedState:
    """A grammar's state under which the reasoning ends in time."""

    def __init__(self, state: GrammarState, thoughts: Thoughts) -> None:
        self._state = state
        self._thoughts = thoughts

    @property
    def finished(self) -> bool:
        return self._state.finished

    @property
    def late(self) -> bool:
        return self._state.late

    def fits(self, token: int) -> bool:
        return self._state.fits(token)

    def accept(self, token: int) -> None:
        self._state.accept(token)
        self._thoughts.take(token)

    def forced(self) -> tuple[int, ...]:
        return self._state.forced()

    def coming(self) -> tuple[int, ...]:
        return self._state.coming()

    def draft(self, tokens: Seq[int]) -> int:
        """Return how many may come before the reasoning must end."""
        thoughts, count = self._thoughts.branched(), 0
        while thoughts.next is None and count < len(tokens):
            thoughts.take(tokens[count])
            count += thoughts.next is None
        return self._state.draft(tokens[:count]) if count else 0

    def drafted(self, count: int) -> bytes | None:
        return self._state.drafted(count)

    def mask(self) -> bytes | None:
        mask, given = self._state.mask(), self._thoughts.next
        if mask is None or given is None:
            return mask
        place, bit = given // 8, 1 << given % 8
        if not mask[place] & bit:
            self._thoughts.skip()
            return mask
        return bytes(place) + bytes((bit,)) + bytes(len(mask) - place - 1)
