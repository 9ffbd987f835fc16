"""Beam searches in the scheduler: their hypotheses on the pages of one pool. Pure.

A hypothesis that moves to another seat takes its parent's full pages with it, which nobody writes
to again, and begins a page of its own with a copy of the one that is filled in part. This needs no
prefix cache.

A search that was preempted computes its first hypothesis again, like any sequence. The others then
begin behind the tokens that they have in common with it, the prompt at least, and when all have
caught up the search goes on.
"""

from __future__ import annotations

from model_server.engine.accounts import Accounts
from model_server.engine.beams.group import BeamGroup
from model_server.engine.paging.allocation import Allocation
from model_server.engine.paging.parting import parting
from model_server.engine.sequence import Sequence, SequenceUpdate
from model_server.engine.types import Hypothesis, RowResult
from sax.errors import InvalidRequest


class Seating:
    """All beam searches of a scheduler."""

    def __init__(self, held: Allocation, accounts: Accounts) -> None:
        self._held = held
        self._accounts = accounts
        self._page_size = held.limits.page_size
        self._groups: dict[int, BeamGroup] = {}  # by the first seat's id
        # By the first seat's id: those that wait for its prompt, and where they part from it.
        self._behind: dict[int, list[tuple[Sequence, int]]] = {}

    def add(self, sequence: Sequence) -> None:
        """Make the seats of a search."""
        self._groups[sequence.id] = BeamGroup(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a search, by its first seat."""
        self._groups.pop(sequence.id, None)
        self._behind.pop(sequence.id, None)

    def begin(self, sequence: Sequence) -> None:
        """Begin, or begin again, in slots that all seats have just taken."""
        assert sequence.seats is not None
        waiting = self._groups[sequence.id].begin()
        self._behind[sequence.id] = [(seat, parting(seat, sequence)) for seat in waiting]
        for seat in waiting:
            seat.goal = len(seat.tokens)  # the pages for it are kept, and it does not decode yet

    def lose_slots(self, sequence: Sequence) -> None:
        """Note that all seats have lost their slots. Results in flight still count."""
        assert sequence.seats is not None
        self._behind.pop(sequence.id, None)
        sequence.lost = max(seat.lost for seat in sequence.seats)
        if sequence.settled:
            self._groups[sequence.id].line_up()

    def followed(self, sequence: Sequence) -> list[int]:
        """Return the positions behind which others will begin with the pages of this one."""
        return [position for _, position in self._behind.get(sequence.id, ())]

    def commit(self, seat: Sequence, outcome: RowResult) -> list[Hypothesis] | None:
        """Take in a seat's result; return the answers, best first, if the search is over."""
        assert seat.seats is not None
        first = seat.seats[0]
        group = self._groups[first.id]
        seat.in_flight -= 1
        last = group.report(seat, outcome)
        if seat is first and first.slot >= 0:
            self._catch_up(first)
        if not last:
            return None
        self._move(group)
        return group.search.answers if group.search.done else None

    def _move(self, group: BeamGroup) -> None:
        """Bring each hypothesis to its seat."""
        moves = group.advance()
        seated = group.seats[0].slot >= 0
        if seated:
            for seat in (*(fork[0] for fork in moves.forks), *moves.left):
                self._accounts.charge(seat)
                # What was given up is of no use to others: its last page is not kept for them.
                seat.written = seat.kept * self._page_size
                self._held.vacate(seat)
            for seat, parent in moves.forks:
                self._follow(seat, parent, parent.launched)
        group.sit(moves)
        if seated and self._held.shares:
            for seat, _ in moves.forks:
                self._held.cache.follow(seat)
        if not seated:
            group.line_up()

    def _catch_up(self, first: Sequence) -> None:
        """Let the others begin where they differ from the first seat, whose pages are there."""
        for seat, common in self._behind.pop(first.id, ()):
            self._follow(seat, first, common)
            seat.chain = first.chain[: common // self._page_size + 1]
            if self._held.shares:
                self._held.cache.follow(seat)
            seat.goal = len(seat.tokens)
            self._accounts.begin_prompt(seat)

    def _follow(self, seat: Sequence, parent: Sequence, positions: int) -> None:
        """Let an empty seat go on behind the first positions of its parent."""
        full, rest = divmod(positions, self._page_size)
        held = parent.pages[: full + (rest > 0)]
        for page in held:
            if page:  # 0: before the window
                self._held.pool.share(page)
        seat.pages = held[:full]
        seat.source = held[full] if rest else 0
        if self._held.near is not None:
            self._held.near.follow(seat, parent, full, rest)
        seat.launched = seat.reused = positions
        seat.kept, seat.written = full, full * self._page_size
        seat.unseen = min(parent.unseen, full)
        seat.long, seat.recompute_at = parent.long, parent.recompute_at


def found(sequence: Sequence, answers: list[Hypothesis]) -> SequenceUpdate:
    """Return the last update of a search."""
    if not answers:
        error = InvalidRequest(
            "beam search found no answer: the model never gives an end token any probability; set "
            "stop_token_ids, or leave out beam_size",
            param="beam_size",
        )
        return SequenceUpdate(sequence.id, RowResult(), error=error)
    return SequenceUpdate(
        sequence.id,
        RowResult(),
        "stop",
        cached=max(sequence.cached, 0),
        hypotheses=tuple(answers),
    )
