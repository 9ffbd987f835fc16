"""Bodies are refused by the number of their values before anything parses them."""

import json

import httpx
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.body import parts_of, values_of, without_texts
from sax.fields.field import RequestRoute
from sax.fields.table import most_bytes, most_values
from tests.each_case import each_case

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text('a,[{"\\\n\u00e9')),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('a,[{"\\'), inner)),
    max_leaves=30,
)


def values(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(values, value))
    if isinstance(value, dict):
        return 1 + sum(map(values, value.values()))
    return 1


def parts(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(parts, value))
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(parts, value.values()))
    return 0


@given(JSON, st.booleans())
def test_values_and_parts_are_counted_outside_texts(value: object, ascii_only: bool) -> None:
    bare = without_texts(json.dumps(value, ensure_ascii=ascii_only).encode(), 10**6)
    assert bare is not None
    assert values(value) <= values_of(bare) <= 2 * values(value)
    assert parts_of(bare) == parts(value)


def test_a_body_of_very_many_texts_is_not_cut_up() -> None:
    body = b'["' + b'","' * 1000 + b'"]'
    assert without_texts(body, 501) is not None
    assert without_texts(body, 500) is None


@each_case(
    "body",
    [
        b'{"model": "m", "stop": [' + b"1," * 2_000_000 + b"1]}",
        b'{"model": "m", "x": [' + b"[]," * 2_000_000 + b"[]]}",
        b'{"model": "m", "messages": [' + b'{"role":"user","content":""},' * 230_000 + b"{}]}",
        b"{" + b",".join(b'"x%d":1' % i for i in range(400_000)) + b"}",
    ],
)
async def test_a_body_of_very_many_values_is_refused(body: bytes, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "body"
    assert f"more than {most_values(RequestRoute.CHAT)} " in error["message"]


async def test_a_body_larger_than_any_good_one_of_its_route_is_refused(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.post("/listall", content=b'{"sax_cell": "' + b"x" * 1_000_000 + b'"}')
    assert answer.status_code == 413
    assert f"at most {most_bytes(RequestRoute.LISTALL)} make sense for /listall" in answer.text


async def test_commas_and_brackets_inside_texts_are_not_values(http: httpx.AsyncClient) -> None:
    text = '[{:,"\\' * 100_000
    body = {"model": "llama", "messages": [{"role": "user", "content": text}]}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
