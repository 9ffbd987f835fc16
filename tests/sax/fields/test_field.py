"""A field's bounds: what is too large is refused with its name, its size and the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.errors import InvalidRequest
from sax.fields.field import Kind, RequestField, longer, size_of
from tests.each_case import each_case

FIELD = RequestField(name="x", kind=Kind.PROMPTS, routes=(), count=2, bytes=4, tokens=3)


@given(st.text(), st.integers(0, 40))
def test_longer_is_what_the_bytes_say(text: str, most: int) -> None:
    assert longer(text, most) == (size_of(text) > most)
    assert size_of(text) == len(text.encode(errors="surrogatepass"))


@each_case(
    "value", ["abcd", b"abcd", ["abcd", "é"], {"abcd": "é"}, [1, 2, 3], [[1, 2, 3], "a"], 10**9, {}]
)
def test_what_fits_passes(value: object) -> None:
    FIELD.check(value)


@each_case(
    "value, size",
    [
        ("abcde", "5 bytes; at most 4"),
        (b"abcde", "5 bytes; at most 4"),
        ("ééé", "6 bytes; at most 4"),
        (["a", "b", "c"], "3 entries; at most 2"),
        (["a", "abcde"], "5 bytes; at most 4"),
        ({"a": 1, "b": 1, "c": 1}, "3 entries; at most 2"),
        ({"abcde": 1}, "5 bytes; at most 4"),
        ({"a": "abcde"}, "5 bytes; at most 4"),
        ([1, 2, 3, 4], "4 token ids; at most 3"),
        ([[1, 2, 3, 4]], "4 token ids; at most 3"),
    ],
)
def test_what_is_too_large_is_refused(value: object, size: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^x\\[1\\] has {size} are allowed") as caught:
        FIELD.check(value, "x[1]")
    assert caught.value.param == "x[1]"
