"""Waiting for one name's change: nobody else's change wakes, and none is missed."""

from admin_server.condition import ChangeSignal


def test_a_change_wakes_those_who_wait_for_that_name_only():
    notice = ChangeSignal()
    mine, other = notice.next("a"), notice.next("b")
    notice.post(["a"])
    assert mine.is_set()
    assert not other.is_set()


def test_an_event_taken_before_a_look_is_set_by_a_change_after_it():
    notice = ChangeSignal()
    first = notice.next("a")
    assert notice.next("a") is first
    notice.post(["a"])
    assert notice.next("a") is not first


def test_all_are_woken_at_once():
    notice = ChangeSignal()
    events = [notice.next("a"), notice.next("b")]
    notice.post_all()
    assert all(event.is_set() for event in events)


def test_names_that_nobody_waits_for_cost_nothing():
    notice = ChangeSignal()
    notice.post(f"m{n}" for n in range(1000))
    assert notice.woken == 0
