"""The check itself: each kind of lie is found."""

from dataclasses import replace

import pytest

from admin_server.ledger.ledger import Entry
from admin_server.ledger.records import Lead, Publish, Record, Unpublish, Update
from admin_server.ledger.state import CellState, apply
from sax.types import ModelSpec
from tests.simulation import history as h
from tests.simulation.history import History, Wrong, check

M = "/sax/test/m"


def spec(by: str) -> ModelSpec:
    return ModelSpec(model_id=M, model_path="x", checkpoint=f"/{by}", replicas=1, version="0" * 32)


def log(*records: Record) -> tuple[list[Entry], CellState]:
    entries = [Entry(n, record) for n, record in enumerate(records, 1)]
    state = CellState("/sax/test")
    for entry in entries:
        state = apply(state, entry.record, entry.sequence)
    return entries, state


def publish(by: str) -> Publish:
    return Publish(spec(by), 0.0, by)


def called(*calls: tuple[str, str, str]) -> History:
    """One call after the other: (by, kind, outcome or the name of the refusal)."""
    history = History()
    for by, kind, outcome in calls:
        call = history.begin(by, kind, M, spec(by))
        known = outcome in ("done", "unknown")
        history.end(call, outcome if known else "refused", "" if known else outcome)
    return history


def test_a_truthful_history_is_good():
    history = called(
        ("a", h.PUBLISH, "done"), ("b", h.PUBLISH, "ModelExists"), ("c", h.UNPUBLISH, "unknown")
    )
    check(history, *log(Lead("id", 0.0), publish("a"), Unpublish(M, 0.0, "c")))
    check(history, *log(publish("a")))


@pytest.mark.parametrize(
    ("calls", "records", "complaint"),
    [
        ([("a", h.PUBLISH, "done")], [], "acknowledged and lost"),
        ([("a", h.PUBLISH, "ModelExists")], [publish("a")], "refused and done"),
        ([], [publish("a")], "nobody made"),
        ([("a", h.PUBLISH, "done")], [publish("a"), publish("a")], "both of the call"),
        (
            [("a", h.PUBLISH, "done"), ("b", h.UPDATE, "done")],
            [Update(spec("b"), 0.0, "b"), publish("a")],
            "stands before it",
        ),
        ([("a", h.PUBLISH, "ModelExists")], [], "never true"),
        (
            [("a", h.PUBLISH, "done"), ("b", h.UPDATE, "ModelNotFound")],
            [publish("a")],
            "never true",
        ),
        ([("a", h.UNPUBLISH, "unknown")], [publish("a")], "the record of"),
    ],
)
def test_a_lie_is_found(calls, records, complaint):
    with pytest.raises(Wrong, match=complaint):
        check(called(*calls), *log(*records))


def test_a_state_that_the_log_does_not_give_is_found():
    entries, state = log(publish("a"))
    other = replace(state, models={})
    with pytest.raises(Wrong, match="replayed"):
        check(called(("a", h.PUBLISH, "done")), entries, other)


def test_a_log_with_a_gap_is_found():
    entries, state = log(publish("a"), Unpublish(M, 0.0, "b"))
    with pytest.raises(Wrong, match="gaps"):
        check(called(("a", h.PUBLISH, "done"), ("b", h.UNPUBLISH, "done")), entries[1:], state)
