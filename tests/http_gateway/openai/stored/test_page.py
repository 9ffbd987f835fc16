import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.stored.page import PageQuery, ids_of_page, page_of
from sax.errors import NotFound


@given(count=st.integers(0, 30), limit=st.integers(1, 9), order=st.sampled_from(["asc", "desc"]))
def test_pages_in_turn_are_the_whole_list(count: int, limit: int, order: str):
    ids = [f"id-{n}" for n in range(count)]
    seen: list[str] = []
    after, more = None, True
    while more:
        page, more = ids_of_page(ids, PageQuery(after=after, limit=limit, order=order))  # pyright: ignore[reportArgumentType]
        assert len(page) <= limit
        seen += page
        after = page[-1] if page else None
    assert seen == (ids if order == "asc" else ids[::-1])


def test_a_page_after_an_unknown_id_is_refused():
    with pytest.raises(NotFound, match="after is 'x': give the id of an entry"):
        ids_of_page(["a"], PageQuery(after="x"))


def test_a_page_names_its_first_and_last_id():
    entries = [{"id": name} for name in "abc"]
    page = page_of(entries, PageQuery(limit=2))
    assert page == {
        "object": "list",
        "data": [{"id": "c"}, {"id": "b"}],
        "first_id": "c",
        "last_id": "b",
        "has_more": True,
    }
    assert page_of([], PageQuery())["first_id"] is None
