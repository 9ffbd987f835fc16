"""The OpenAI target: against the gateway's application, and servers that take fewer fields."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.cli.bench.openai_target import OpenAiTarget
from sax.cli.bench.target import AnswerPart
from sax.cli.bench.workload import PlannedRequest
from sax.errors import InvalidRequest, ModelNotFound, QueueFull, SaxError, Unavailable
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

REQUEST = PlannedRequest("one two", 3)


@pytest.fixture
def cell() -> FakeCell:
    return FakeCell(published("/sax/test/smollm2"))


@pytest.fixture
async def http(cell: FakeCell) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig()))
    async with httpx.AsyncClient(transport=transport) as client:
        yield client


async def parts(target: OpenAiTarget) -> list[AnswerPart]:
    return [part async for part in target.answer(REQUEST)]


@pytest.mark.parametrize("chat", [False, True])
async def test_our_gateway_is_asked_for_exactly_so_many_tokens(
    cell: FakeCell, http: httpx.AsyncClient, chat: bool
) -> None:
    target = OpenAiTarget(http, "http://gateway/v1/", None, chat)
    await target.prepare()
    found = await parts(target)
    assert sum(part.shown for part in found) == 3
    assert (found[-1].tokens, found[-1].prompt_tokens) == (3, len(REQUEST.prompt))
    sampling = cell.requests[-1].sampling
    assert (sampling.max_tokens, sampling.min_tokens) == (3, 3)
    assert sampling.ignore_eos
    assert target.subject["model"] == "/sax/test/smollm2"
    assert target.subject["ignores_end"]


async def test_a_failure_in_mid_stream_is_an_error(cell: FakeCell, http: httpx.AsyncClient) -> None:
    target = OpenAiTarget(http, "http://gateway", None, False)
    await target.prepare()
    cell.failure, cell.fail_at = Unavailable("the replica is gone"), 1
    with pytest.raises(Unavailable, match="the replica is gone"):
        await parts(target)


async def test_a_full_server_is_an_error_with_its_status(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    target = OpenAiTarget(http, "http://gateway", None, False)
    await target.prepare()
    cell.failure = QueueFull("the queue is full", retry_after_s=1)
    with pytest.raises(SaxError, match="HTTP 429"):
        await parts(target)


async def test_of_several_models_one_must_be_chosen(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.models["/sax/test/other"] = published("/sax/test/other")
    with pytest.raises(ModelNotFound, match="--model"):
        await OpenAiTarget(http, "http://gateway", None, False).prepare()


class Strict:
    """A server that takes only the fields it knows, and answers with two parts."""

    def __init__(self, *taken: str, events: Collection[Any] = (), done: bool = True) -> None:
        self.taken = {"model", "prompt", "max_tokens", "temperature", "stream", *taken}
        self.events = events or [{"choices": [{"text": each}]} for each in ("a", "", "b")]
        self.done = done

    def __call__(self, request: httpx.Request) -> httpx.Response:
        unknown = json.loads(request.content).keys() - self.taken
        if unknown:
            return httpx.Response(400, json={"error": f"unknown: {sorted(unknown)}"})
        lines = [f"data: {json.dumps(event)}\n\n" for event in self.events]
        return httpx.Response(200, text="".join(lines) + ("data: [DONE]\n\n" if self.done else ""))


def asking(server: Strict) -> OpenAiTarget:
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    return OpenAiTarget(http, "http://server", "m", False)


@each_case(
    "taken, ignores_end",
    [
        (("ignore_eos", "min_tokens", "stream_options"), True),
        (("ignore_eos", "stream_options"), True),
        (("ignore_eos",), True),
        (("min_tokens",), True),
        (("stream_options",), False),
        ((), False),
    ],
)
async def test_a_server_is_asked_with_the_fields_that_it_takes(
    taken: tuple[str, ...], ignores_end: bool
) -> None:
    target = asking(Strict(*taken))
    await target.prepare()
    assert target.subject["ignores_end"] is ignores_end
    assert [part.shown for part in await parts(target)] == [True, False, True]


async def test_a_server_that_refuses_everything_is_told_as_it_says() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(422, text="never"))
    target = OpenAiTarget(httpx.AsyncClient(transport=transport), "http://server", "m", False)
    with pytest.raises(InvalidRequest, match="never"):
        await target.prepare()


async def test_a_stream_without_its_end_is_an_error() -> None:
    with pytest.raises(Unavailable, match="ended before its end"):
        await parts(asking(Strict(done=False)))


async def test_an_event_that_is_not_json_is_an_error() -> None:
    broken = httpx.MockTransport(lambda _: httpx.Response(200, text='data: {"choices": [\n\n'))
    target = OpenAiTarget(httpx.AsyncClient(transport=broken), "http://server", "m", False)
    with pytest.raises(Unavailable, match="not JSON"):
        await parts(target)


async def test_a_server_that_is_not_there_is_named() -> None:
    def nobody(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    http = httpx.AsyncClient(transport=httpx.MockTransport(nobody))
    with pytest.raises(Unavailable, match="http://server: refused"):
        await OpenAiTarget(http, "http://server", "m", False).prepare()
