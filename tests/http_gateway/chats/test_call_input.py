"""The input of a call as an object, whatever the model wrote."""

from __future__ import annotations

from http_gateway.chats.call_input import INVALID_JSON, call_input
from tests.each_case import each_case


def test_an_object_is_read() -> None:
    assert call_input('{"a": [1]}') == {"a": [1]}
    assert call_input("") == {}


@each_case("text", ['{"a": ', "[1]", "{a: 1}", "[" * 100_000])
def test_what_is_none_stays_a_text(text: str) -> None:
    assert call_input(text) == {INVALID_JSON: text}
