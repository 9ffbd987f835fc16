"""Rows of the media buffer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.parts.encodes import RowPool

ROWS = 12


def test_an_image_is_found_until_its_rows_are_taken():
    pool = RowPool(4)
    first = pool.take(b"a", 3)
    assert pool.find(b"a") == first
    assert pool.take(b"b", 2) is not None
    assert pool.find(b"a") is None


def test_the_image_used_longest_ago_gives_up_its_rows_first():
    pool = RowPool(4)
    pool.take(b"a", 2)
    pool.take(b"b", 2)
    pool.find(b"a")
    pool.take(b"c", 1)
    assert pool.find(b"a") is not None
    assert pool.find(b"b") is None


def test_pinned_rows_are_not_taken():
    pool = RowPool(4)
    pool.take(b"a", 3)
    pool.pin(b"a")
    assert pool.take(b"b", 2) is None
    pool.unpin(b"a")
    assert pool.take(b"b", 2) is not None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["use", "pin", "unpin"]))))
def test_no_row_belongs_to_two_images_and_pinned_ones_keep_theirs(moves: list[tuple[str, str]]):
    pool = RowPool(ROWS)
    sizes = {name: 1 + 2 * index for index, name in enumerate("abcdef")}
    rows: dict[str, tuple[int, ...]] = {}
    pins: Counter[str] = Counter()
    for name, move in moves:
        digest = name.encode()
        if move == "use" and pool.find(digest) is None:
            held = sum(sizes[each] for each in pins if pins[each])
            taken = pool.take(digest, sizes[name])
            assert (taken is not None) == (held + sizes[name] <= ROWS)
            if taken is not None:
                rows[name] = taken
        elif move == "pin" and pool.find(digest) is not None:
            pool.pin(digest)
            pins[name] += 1
        elif move == "unpin" and pins[name]:
            pool.unpin(digest)
            pins[name] -= 1
        found = {each: pool.find(each.encode()) for each in rows}
        assert all(found[each] == rows[each] for each in rows if pins[each])
        used = [row for each in found.values() if each is not None for row in each]
        assert len(used) == len(set(used)) == pool.used
        assert set(used) <= set(range(ROWS))
