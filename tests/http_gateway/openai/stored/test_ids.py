from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.stored.ids import made_at, new_id


@given(st.integers(0, 2**40 - 1))
def test_an_id_tells_when_it_was_made(now: int):
    assert made_at(new_id("file-", now), "file-") == now
    assert made_at(new_id("file-", now), "batch_") is None


@given(st.integers(0, 2**39), st.integers(1, 2**39 - 1))
def test_ids_sort_by_time(now: int, later: int):
    assert new_id("resp_", now) < new_id("resp_", now + later)


@given(st.text(max_size=60))
def test_other_texts_are_no_ids(text: str):
    assert made_at(text, "file-") is None
