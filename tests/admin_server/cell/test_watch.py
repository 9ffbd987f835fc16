"""The watch set: whoever follows the protocol has the values, whatever was missed."""

from hypothesis import given
from hypothesis import strategies as st

from admin_server.cell.watch import Delta, WatchSet

values = st.frozensets(st.sampled_from([f"10.0.0.{n}:1" for n in range(12)]))


def follow(had: frozenset[str], delta: Delta) -> frozenset[str]:
    """What a client has after a delta."""
    now = set(delta.values) if delta.full else set(had)
    for change in delta.changes:
        (now.add if change.added else now.discard)(change.value)
    return frozenset(now)


@given(st.integers(0, 50), st.lists(st.tuples(values, st.booleans()), max_size=40))
def test_a_client_that_asks_now_and_then_always_ends_with_the_values(base, history):
    watched, client, seqno = WatchSet(base), frozenset[str](), None
    for new, asks in history:
        watched = watched.become(new)
        assert watched.values == new
        if asks:
            delta = watched.since(seqno)
            client, seqno = follow(client, delta), delta.next_seqno
            assert client == new


@given(st.lists(values, max_size=60))
def test_the_log_stays_about_as_short_as_the_set(history):
    watched = WatchSet(0)
    for new in history:
        watched = watched.become(new)
        assert len(watched.changes) <= 2 * max(len(new), 8)


def test_a_value_of_which_something_else_changed_is_added_again_and_harms_nobody():
    watched = WatchSet(0).become(["a", "b"])
    again = watched.become(["a", "b"], anew=["b", "gone"])
    delta = again.since(watched.seqno)
    assert [(change.value, change.added) for change in delta.changes] == [("b", True)]
    assert follow(frozenset("ab"), delta) == {"a", "b"} == again.values


def test_values_that_do_not_change_are_no_change():
    watched = WatchSet(0).become(["a"])
    assert watched.become(["a"]) is watched
    assert watched.since(watched.seqno) == Delta(watched.seqno)


def test_a_client_of_another_admin_gets_the_full_set():
    assert WatchSet(3).become(["b", "a"]).since(None) == Delta(5, full=True, values=("a", "b"))


def test_a_number_that_was_never_given_gets_the_full_set():
    watched = WatchSet(3).become(["a"])
    assert watched.since(2).full
    assert watched.since(5).full


def test_a_client_a_step_behind_gets_only_the_change():
    before = WatchSet(0).become(["a", "b"])
    delta = before.become(["b"]).since(before.seqno)
    assert not delta.full
    assert [(change.value, change.added) for change in delta.changes] == [("a", False)]


def test_what_replaces_a_replica_comes_before_it_goes():
    before = WatchSet(0).become(["a"])
    delta = before.become(["b"]).since(before.seqno)
    assert [(change.value, change.added) for change in delta.changes] == [("b", True), ("a", False)]
