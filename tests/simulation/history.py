"""What clients did and heard, and the proof that the log agrees with all of it.

The log is the order of things. A history is good if

- every acknowledged call is in the log, once, in an order that agrees with real time: what was
  acknowledged before another call began stands before it;
- every record in the log is a call that somebody made and that was not refused;
- whoever was refused ("there is none", "there is one already", "someone changed it") was told the
  truth of some moment between the call and its answer;
- nothing else changed the state: replaying the log gives the state.

Every call carries a number of its own as its caller's name, so that its record is known again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from admin_server.ledger.ledger import Entry
from admin_server.ledger.records import Lead, Record
from admin_server.ledger.state import CellState, apply
from sax.types import ModelSpec

PUBLISH, UPDATE, ROLLBACK, UNPUBLISH = "publish", "update", "rollback", "unpublish"


@dataclass
class Call:
    """One call of one client. `outcome`: done, refused, unknown."""

    by: str
    kind: str
    model_id: str
    began: int  # a moment: calls and answers are numbered in one order
    spec: ModelSpec | None = None
    ended: int | None = None
    outcome: str = "unknown"
    error: str = ""


@dataclass
class History:
    """All calls, by one observer who sees every beginning and end in order."""

    calls: list[Call] = field(default_factory=list[Call])
    _moments: itertools.count[int] = field(default_factory=itertools.count)

    def begin(self, by: str, kind: str, model_id: str, spec: ModelSpec | None = None) -> Call:
        call = Call(by, kind, model_id, next(self._moments), spec)
        self.calls.append(call)
        return call

    def end(self, call: Call, outcome: str, error: str = "") -> None:
        call.ended, call.outcome, call.error = next(self._moments), outcome, error

    def count(self, outcome: str) -> int:
        return sum(call.outcome == outcome for call in self.calls)


class Wrong(AssertionError):
    """The log and the history do not agree."""


def check(history: History, entries: Sequence[Entry], final: CellState) -> None:
    """Raises Wrong with what does not agree. `entries` is the whole log, in order."""
    places = _places(history, entries)
    _check_acknowledged(history, places)
    _check_real_time(history, places)
    states = _states(final.cell, entries)
    _check_same(states[-1], final)
    _check_refusals(history, places, states)


def _places(history: History, entries: Sequence[Entry]) -> dict[str, int]:
    """Where in the log each call's record is, counted from 1."""
    numbers = [entry.sequence for entry in entries]
    if numbers != list(range(1, len(entries) + 1)):
        raise Wrong(f"the log has gaps or doubles: {numbers}")
    known = {call.by: call for call in history.calls}
    places: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry.record, Lead):
            continue
        by = entry.record.by
        if by not in known:
            raise Wrong(f"record {entry.sequence} ({by!r}) is a call that nobody made")
        if by in places:
            raise Wrong(f"records {places[by]} and {entry.sequence} are both of the call {by}")
        _check_whole(known[by], entry.record)
        places[by] = entry.sequence
    return places


def _check_whole(call: Call, record: Record) -> None:
    """No half of a call: the record says what the call said."""
    spec = getattr(record, "spec", None)
    told = (type(record).__name__.lower(), spec.checkpoint if spec else None)
    asked = (call.kind, call.spec.checkpoint if call.spec and spec else None)
    if told != asked:
        raise Wrong(f"the record of {call} says {told}")


def _check_acknowledged(history: History, places: dict[str, int]) -> None:
    for call in history.calls:
        # A rollback to what is current writes nothing; an update here always changes something.
        if call.outcome == "done" and call.by not in places and call.kind != ROLLBACK:
            raise Wrong(f"acknowledged and lost: {call}")
        if call.outcome == "refused" and call.by in places:
            raise Wrong(f"refused and done all the same, as record {places[call.by]}: {call}")


def _check_real_time(history: History, places: dict[str, int]) -> None:
    """Sweep over the moments: a call that begins must land after all that were acknowledged."""
    moments: list[tuple[int, bool, Call]] = []
    for call in history.calls:
        if call.by in places:
            moments.append((call.began, False, call))
            if call.outcome == "done" and call.ended is not None:
                moments.append((call.ended, True, call))
    acknowledged, last = 0, ""
    for _, ended, call in sorted(moments, key=lambda moment: moment[0]):
        place = places[call.by]
        if ended and place > acknowledged:
            acknowledged, last = place, call.by
        if not ended and place < acknowledged:
            raise Wrong(f"{call} began after {last} was acknowledged, and stands before it")


def _states(cell: str, entries: Sequence[Entry]) -> list[CellState]:
    """The state after each number of records."""
    states = [CellState(cell)]
    for entry in entries:
        states.append(apply(states[-1], entry.record, entry.sequence))
    return states


def _check_same(replayed: CellState, final: CellState) -> None:
    if replayed.models != final.models:
        raise Wrong(f"replayed, the log gives {replayed.models}, but the leader has {final.models}")


def _check_refusals(history: History, places: dict[str, int], states: list[CellState]) -> None:
    for call in history.calls:
        if call.outcome != "refused" or call.ended is None:
            continue
        done = [c for c in history.calls if c.by in places]
        before = [places[c.by] for c in done if c.outcome == "done" and (c.ended or 0) < call.began]
        during = [places[c.by] for c in done if c.began < call.ended]
        first, last = max(before, default=0), max([*during, *before], default=0)
        # Records of leaders change no model; one more state on either side is the same for us.
        window = states[first : last + 1]
        if not any(_is_true(call, state) for state in window):
            raise Wrong(f"{call} was told what was never true in its time")


def _is_true(call: Call, state: CellState) -> bool:
    """Was the refusal true in this state?"""
    exists = call.model_id in state.models
    if call.error == "ModelExists":
        return exists
    if call.error == "ModelNotFound":
        return not exists
    return True  # a stale revision, or a version that is not known: checked by their own tests
