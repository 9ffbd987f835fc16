"""Lists of token ids in text, as Saxml's clients write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.text.id_list import join_ids, parse_ids
from sax.errors import InvalidRequest, PromptTooLong
from tests.each_case import each_case


@given(st.lists(st.integers(0, 2**31 - 1), max_size=9))
def test_a_list_comes_back(ids: list[int]) -> None:
    assert list(parse_ids(join_ids(ids), 9, "text")) == ids


def test_spaces_beside_an_id_are_allowed() -> None:
    assert parse_ids(" 5, 6 ,7\n", 9, "text") == (5, 6, 7)


@each_case("text", ["hello", "5,,6", "5;6", "-5", "5.0", "1_0", "²", "٣", "1" * 99])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="suffix is not a list of token ids") as caught:
        parse_ids(text, 9, "suffix")
    assert caught.value.param == "suffix"
    assert len(caught.value.text) < 300


def test_more_ids_than_the_context_holds_are_refused_before_they_are_read() -> None:
    with pytest.raises(PromptTooLong, match="text has 10 token ids and this .* length is 9 tokens"):
        parse_ids("x," * 9, 9, "text")
