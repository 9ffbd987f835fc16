"""A whole number may be written as 3.0: JSON does not tell it from 3."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.bounds import whole
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

NUMBERS = st.integers(-(2**53), 2**53)


@given(NUMBERS, st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_whole_becomes_an_integer_and_nothing_else_changes(
    number: int, other: float
) -> None:
    assert type(whole(float(number))) is int
    assert whole([float(number), "a", None]) == [number, "a", None]
    assert whole(other) == other
    assert whole(True) is True
    assert whole("3.0") == "3.0"


@each_case(
    "path, body",
    [
        ("/v1/completions", {"prompt": [5.0, 6], "max_tokens": 2.0, "n": 1.0}),
        ("/v1/embeddings", {"input": [[5.0], [6]], "dimensions": 2.0}),
        ("/detokenize", {"tokens": [104.0]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 1.0}),
    ],
)
async def test_routes_take_whole_numbers_either_way(
    path: str, body: dict[str, object], http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await http.post(path, json={"model": "llama", **body})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("body", [{"max_tokens": 2.5}, {"n": "1"}, {"seed": True}])
async def test_what_is_not_whole_is_refused_by_name(
    http: httpx.AsyncClient, body: dict[str, object]
) -> None:
    reply = await http.post("/v1/completions", json={"model": "llama", "prompt": "a", **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(body)))
