"""Updates are delivered in order, all of them, and nobody waits for a first or a last token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.outbox import Outbox
from model_server.engine.request import SequenceUpdate
from model_server.engine.types import RowResult
from sax.errors import Internal

FOR_EVER = 1e9


def token(sequence: int, token: int) -> SequenceUpdate:
    return SequenceUpdate(sequence, RowResult(token))


def last(sequence: int) -> SequenceUpdate:
    return SequenceUpdate(sequence, RowResult(9), "length")


class Delivered(list[list[SequenceUpdate]]):
    """What an outbox delivered, by delivery."""

    def after(self, outbox: Outbox, *updates: SequenceUpdate) -> list[SequenceUpdate]:
        """Return what is delivered after one more step with these updates."""
        self.clear()
        outbox.add(updates)
        outbox.flush(more=True)
        return [update for delivery in self for update in delivery]


def test_a_first_token_is_delivered_at_once_and_the_next_ones_wait() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, FOR_EVER)
    assert delivered.after(outbox, token(1, 5)) == [token(1, 5)]
    assert delivered.after(outbox, token(1, 6)) == []
    assert delivered.after(outbox, token(1, 7)) == []


def test_a_last_token_takes_along_what_waits_for_anybody() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, FOR_EVER)
    delivered.after(outbox, token(1, 5), token(2, 5))
    delivered.after(outbox, token(1, 6), token(2, 6))
    assert delivered.after(outbox, last(2)) == [token(1, 6), token(2, 6), last(2)]


def test_an_error_and_a_newcomer_do_not_wait() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, FOR_EVER)
    delivered.after(outbox, token(1, 5))
    assert delivered.after(outbox, token(2, 5)) == [token(2, 5)]
    error = SequenceUpdate(1, RowResult(), error=Internal("no"))
    assert delivered.after(outbox, error) == [error]


def test_an_id_that_ended_is_new_when_it_comes_again() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, FOR_EVER)
    delivered.after(outbox, token(1, 5))
    delivered.after(outbox, last(1))
    assert delivered.after(outbox, token(1, 6)) == [token(1, 6)]


def test_nothing_waits_if_nothing_follows() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, FOR_EVER)
    delivered.after(outbox, token(1, 5))
    outbox.add([token(1, 6)])
    outbox.flush()
    assert delivered[-1] == [token(1, 6)]


def test_without_an_interval_every_step_is_delivered() -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append)
    for each in range(5):
        assert delivered.after(outbox, token(1, each)) == [token(1, each)]


@given(st.lists(st.lists(st.integers(1, 4))), st.sampled_from([0.0, 1e-5, FOR_EVER]))
def test_every_update_is_delivered_once_in_order(steps: list[list[int]], interval_s: float) -> None:
    delivered = Delivered()
    outbox = Outbox(delivered.append, interval_s)
    updates = [[token(each, place) for each in step] for place, step in enumerate(steps)]
    for step in updates:
        outbox.add(step)
        outbox.flush(more=True)
    outbox.flush()
    assert [one for each in delivered for one in each] == [one for step in updates for one in step]
