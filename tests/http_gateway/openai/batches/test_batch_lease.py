from http_gateway.openai.batches.batch_lease import BatchLease
from http_gateway.openai.batches.records import BatchBeat


def beat(count: int, *, resigned: bool = False) -> BatchBeat:
    return BatchBeat(count=count, completed=0, failed=0, resigned=resigned)


def test_a_batch_that_nobody_claimed_is_vacant():
    assert BatchLease().look(0, None, 5).vacant(5, 15)


def test_a_claim_is_believed_until_its_beats_have_stood_still():
    lease = BatchLease().look(1, beat(1), 100)
    assert not lease.vacant(114, 15)
    assert lease.look(1, beat(1), 110).vacant(115, 15)
    assert not lease.look(1, beat(2), 114).vacant(120, 15)


def test_a_claim_without_a_beat_has_the_same_time():
    lease = BatchLease().look(1, None, 100)
    assert not lease.vacant(114, 15)
    assert lease.vacant(115, 15)


def test_a_newer_claim_is_a_sign_of_life():
    assert not BatchLease().look(1, beat(9), 100).look(2, None, 114).vacant(120, 15)


def test_who_resigned_leaves_the_batch_at_once():
    assert BatchLease().look(1, beat(2, resigned=True), 100).vacant(100, 15)
