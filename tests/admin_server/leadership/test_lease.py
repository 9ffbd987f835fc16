"""When a follower may lead: by its own clock, from what it saw of the leader."""

from msgspec.structs import replace

from admin_server.leadership.lease import LeaderBeat, Lease, Life

BEAT = LeaderBeat("id", "10.0.0.1:1", 7)


def life(number: int = 1, term: int = 5, **changes) -> Life:
    return Life(term, (term, number), replace(BEAT, **changes))


def watched(*looks: tuple[float, Life]) -> Lease:
    lease = Lease(3.0)
    for now, seen in looks:
        lease = lease.look(seen, now)
    return lease


def test_nobody_is_judged_before_the_first_look():
    assert not Lease(3.0).vacant(100.0)


def test_a_cell_that_nobody_ever_led_is_vacant():
    assert watched((100.0, Life(0))).vacant(100.0)


def test_a_leader_that_beats_is_followed_and_a_silent_one_for_its_time():
    steady = [(100.0 + n, life(n)) for n in range(10)]
    assert not watched(*steady).vacant(109.9)
    silent = [(100.0 + n / 2, life()) for n in range(8)]
    assert not watched(*silent[:6]).vacant(102.9)
    assert watched(*silent).vacant(103.0)


def test_a_leader_that_resigned_is_not_waited_for():
    assert watched((100.0, life(resigned=True))).vacant(100.0)


def test_the_last_word_of_an_older_leader_does_not_count():
    older = Life(9, (5, 3), replace(BEAT, resigned=True))
    assert not watched((100.0, older)).vacant(100.0)


def test_a_leader_in_the_log_that_has_not_beaten_yet_gets_its_time():
    assert not watched((100.0, Life(5))).vacant(100.0)
    assert watched((100.0, Life(5)), (101.0, Life(5)), (102.0, Life(5))).vacant(103.0)


def test_who_could_not_look_for_a_while_begins_to_watch_anew():
    """The store may have stalled for the leader as well."""
    lease = watched((100.0, life()), (110.0, life()))
    assert not lease.vacant(110.0)
    assert not lease.vacant(112.9)


def test_a_new_term_is_a_sign_of_life():
    lease = watched(
        (100.0, life()), (101.0, life()), (102.0, life()), (102.9, Life(6, (5, 1), BEAT))
    )
    assert not lease.vacant(103.5)
