"""The check that every test's replies go through: it fails for what is not described."""

from __future__ import annotations

import httpx
import pytest
from jsonschema import ValidationError

from tests.each_case import each_case
from tests.http_gateway.described import check, document

GOOD = {"object": "list", "data": []}


def test_a_reply_as_described_passes() -> None:
    check(2, "GET", "/v1/models", httpx.Response(200, json=GOOD))
    check(2, "GET", "/nope", httpx.Response(404, json={"detail": "Not Found"}))


@each_case(
    "reply",
    [
        httpx.Response(418, json=GOOD),
        httpx.Response(200, text="plain"),
        httpx.Response(200),
        httpx.Response(200, json={"object": "list"}),
        httpx.Response(200, json={**GOOD, "data": [{"id": "m"}]}),
        httpx.Response(401, json={"detail": "of another family"}),
    ],
)
def test_another_one_fails(reply: httpx.Response) -> None:
    with pytest.raises((AssertionError, ValidationError)):
        check(2, "GET", "/v1/models", reply)


def test_an_event_of_a_stream_is_checked() -> None:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    for data, good in (("[DONE]", True), ('{"id": 1}', False)):
        reply = httpx.Response(200, headers=headers, text=f"data: {data}\n\n")
        if good:
            check(2, "POST", "/v1/completions", reply)
        else:
            with pytest.raises(ValidationError):
                check(2, "POST", "/v1/completions", reply)


@pytest.mark.extended
def test_both_generations_describe_their_routes() -> None:
    assert "/listall" in document(2)["paths"]
    assert "/listall" not in document(1)["paths"]
