"""Long input in every field of every route: no reply repeats more than 200 characters of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell

LONGEST = 200
VALID = {
    "model": "/sax/test/smollm2",
    "sax_cell": "/sax/test",
    "model_path": "llama",
    "checkpoint": "/one",
    "replicas": 1,
    "query": "hello",
    "prompt": "hello",
    "input": "hello",
    "messages": [{"role": "user", "content": "hello"}],
    "version": "0" * 32,
}
# Words of 2,000 characters and none of more than 40, with quotes, slashes and what JSON escapes.
GARBAGE = (
    "".join(chr(0x4E00 + i) for i in range(2000)),
    " ".join(f"{i:x}word{i}" for i in range(300)),
    "/" + "/".join(f"p{i}" for i in range(600)),
    "".join(f"k{i}={i} " for i in range(400)),
    '"' + "".join(f"\\{i}'" for i in range(600)),
)
# Replies of Saxml's that give back the fields of a change that was made, as Saxml's own do.
CHANGES = {"/publish", "/update", "/unpublish", "/rollback", "/canary", "/promote", "/abort"}
CHANGES |= {"/weights"}
CHANGES |= {"/v1/audio/speech"}  # a fake voice's sound is its text
CHANGES |= {"/classify", "/v1/classify"}  # by candidates of the caller's
LONG = {"/docs", "/openapi.json"}

Route = tuple[str, str, tuple[str, ...]]


@cache
def routes(generation: int) -> list[Route]:
    """Method, path and fields of every route, as the application itself describes them."""
    app = create_app(FakeCell(), GatewayConfig(saxml_generation=generation))
    return [
        (method.upper(), path, fields_of(operation))
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]


def fields_of(operation: dict[str, Any]) -> tuple[str, ...]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    query = [each["name"] for each in operation.get("parameters", ())]
    return (*body.get("schema", {}).get("properties", {}), *query)


def repeats(reply: str, garbage: str) -> bool:
    """True if the reply has a run of more than 200 characters of the input, quoted or not."""
    if len(reply) <= LONGEST:
        return False
    try:
        texts = "\n".join(strings_of(json.loads(reply)))
    except ValueError:
        texts = reply
    if not any(part in texts for part in parts(garbage)):
        return False
    runs = (garbage[i : i + LONGEST + 1] for i in range(len(garbage) - LONGEST))
    return any(run in texts or repr(run)[1:-1] in texts for run in runs)


@cache
def parts(garbage: str) -> frozenset[str]:
    """Texts of which every run of more than 200 characters holds one, quoted or not.

    A run is thirty times as fast to rule out so. Quoted, a single quote has a backslash before it
    if the run has double quotes too.
    """
    size = LONGEST // 2
    found = [garbage[i : i + size] for i in range(0, len(garbage) - size + 1, size)]
    escaped = {repr(f"{part}'\"")[1 : -len("\\'\"'")] for part in found}
    return frozenset({*found, *escaped, *(repr(part)[1:-1] for part in found)})


def strings_of(value: object) -> Iterator[str]:
    """Every text in decoded JSON, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from strings_of(each)
    elif isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            yield key
            yield from strings_of(each)


def bodies(fields: tuple[str, ...], garbage: str) -> Iterator[object]:
    """The input as every field, as the name of a field, within lists and objects, as the body."""
    for field in fields:
        valid = {name: VALID[name] for name in fields if name in VALID}
        deep: list[object] = [{"role": garbage}, {"role": "user", "content": [{"type": garbage}]}]
        deep += [{"role": "user", "content": "x", garbage: 1}]
        for value in (garbage, [garbage], {garbage: garbage}, {"a": garbage}, deep, deep[1:]):
            yield {**valid, field: value}
        yield {**valid, field: {garbage: [garbage] * 50}}
    valid = {name: VALID[name] for name in fields if name in VALID}
    yield {**valid, garbage: 1}
    yield {**valid, **{f"{garbage}{i}": garbage for i in range(50)}}
    yield from (garbage, [garbage])


async def check_no_reply_repeats(
    http: httpx.AsyncClient, generation: int, *kinds: tuple[str, ...]
) -> None:
    """Sends all bodies once for each of `kinds`, which lends them its inputs in turn."""
    for method, path, fields in routes(generation):
        for garbages in kinds:
            every = {garbage: list(bodies(fields, garbage)) for garbage in garbages}
            for at, garbage in zip(range(len(every[garbages[0]])), cycle(garbages), strict=False):
                body = every[garbage][at]
                reply = await http.request(method, path, content=json.dumps(body))
                changed = reply.is_success and path in CHANGES
                told = (path, str(body)[:300], reply.text)
                assert changed or not repeats(reply.text, garbage), told
                assert not repeats(str(reply.headers), garbage)
                assert len(reply.text) < 20_000 or changed or path in LONG


@pytest.mark.extended
async def test_no_reply_repeats_a_long_run_of_any_field(connect: Connect) -> None:
    await check_no_reply_repeats(connect(GatewayConfig(saxml_generation=1)), 1, GARBAGE)


@pytest.mark.nightly
@pytest.mark.parametrize("generation", [1, 2])
async def test_no_reply_repeats_a_long_run_of_any_kind_in_any_field(
    connect: Connect, generation: int
) -> None:
    http = connect(GatewayConfig(saxml_generation=generation))
    await check_no_reply_repeats(http, generation, *((garbage,) for garbage in GARBAGE))


@pytest.mark.extended
@pytest.mark.parametrize("generation", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_no_reply_repeats_a_long_path_query_or_header(
    connect: Connect, generation: int
) -> None:
    http = connect(GatewayConfig(saxml_generation=generation))
    word = "".join(f"w{i}" for i in range(400))
    methods = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", word.upper())
    paths = [f"/{word}", f"/v1/{word}", f"/v1/models/{word}", f"/v1/models/{'a ' * 300}", "/events"]
    for method in methods:
        for path in (*paths, *(path for _, path, _ in routes(generation))):
            headers = {"x-request-id": word, "x-api-key": word, "content-type": word}
            query = {"model": word, word: word}
            reply = await http.request(method, path, params=query, headers=headers)
            told = f"{reply.headers}{reply.text}"
            assert not repeats(told, word), told
            assert not repeats(told, "a " * 300), told


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_arbitrary_text_is_repeated(http: httpx.AsyncClient, data: st.DataObject) -> None:
    method, path, fields = data.draw(st.sampled_from([each for each in routes(2) if each[2]]))
    text = data.draw(st.text(min_size=LONGEST + 1, max_size=3 * LONGEST))
    body = data.draw(st.sampled_from(list(bodies(fields, text))))
    reply = await http.request(method, path, content=json.dumps(body))
    if not (reply.is_success and path in CHANGES):
        assert not repeats(reply.text, text)


async def test_a_name_of_many_megabytes_comes_back_in_a_few_hundred_bytes(
    connect: Connect, cell: FakeCell
) -> None:
    http = connect(GatewayConfig())
    name = "x" * 7_800_000
    for path, fields in (("/v1/completions", VALID), ("/publish", {name: 1}), ("/listcell", {})):
        reply = await http.post(
            path, content=json.dumps({**cast("dict[str, Any]", fields), name: 1})
        )
        assert len(reply.content) < 1500
