"""Runs: who is asked when, what is measured of it, and what is left of a run that is stopped.

The clock is a count: an answer's part moves it by the seconds that its target names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.cli.bench.load_plan import PlannedRequest
from sax.cli.bench.measuring import AnswerPart, BenchRun, OpenAiTarget
from sax.errors import InvalidRequest, ModelNotFound, QueueFull, SaxError, Unavailable
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

REQUESTS = [PlannedRequest(f"prompt {number}", 2) for number in range(6)]


class Counting:
    """Answers in two parts, 1 s and 2 s after the request; "full" is refused."""

    subject: dict[str, Any] = {}

    def __init__(self) -> None:
        self.now_s = 100.0
        self.open = self.most_open = 0
        self.held: asyncio.Event | None = None
        self.three_open = asyncio.Event()

    def clock(self) -> float:
        return self.now_s

    async def prepare(self) -> None: ...

    async def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        if request.prompt == "full":
            raise QueueFull("the queue is full")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            if self.open == 3:
                self.three_open.set()
            if self.held is not None:
                await self.held.wait()
            for tokens in (1, 2):
                self.now_s += tokens
                yield AnswerPart(True, tokens, 7)
        finally:
            self.open -= 1


@pytest.fixture
def target() -> Counting:
    return Counting()


def run_of(target: Counting, total: int = len(REQUESTS)) -> BenchRun:
    return BenchRun(target, total, target.clock)


async def test_an_answer_is_measured_from_its_request(target: Counting) -> None:
    run = run_of(target)
    await run.send(REQUESTS[:1], 1, lambda _: None)
    (outcome,) = run.outcomes
    assert (outcome.sent_s, outcome.pieces_s, outcome.ended_s) == (0.0, (1.0, 3.0), 3.0)
    assert (outcome.tokens, outcome.prompt_tokens, outcome.wanted) == (2, 7, 2)
    assert not outcome.error


@pytest.mark.parametrize("streams", [1, 2, 3])
async def test_no_more_are_open_than_streams(target: Counting, streams: int) -> None:
    run = run_of(target)
    told: list[int] = []
    await run.send(REQUESTS, streams, lambda run: told.append(len(run.outcomes)))
    assert target.most_open == streams
    assert told == [1, 2, 3, 4, 5, 6]


@pytest.mark.extended
async def test_a_request_that_is_sent_late_counts_from_when_it_was_due(target: Counting) -> None:
    run = run_of(target)
    timed = [PlannedRequest("a", 2, 0.0), PlannedRequest("b", 2, 1.0)]
    await run.send(timed, 1, lambda _: None)
    assert [outcome.sent_s for outcome in run.outcomes] == [0.0, 1.0]
    assert run.outcomes[1].first_s == 3.0  # two of them waiting for the only stream


async def test_a_refused_request_is_an_outcome_and_the_others_go_on(target: Counting) -> None:
    run = run_of(target)
    await run.send([PlannedRequest("full", 2), *REQUESTS], 2, lambda _: None)
    assert sorted(outcome.error for outcome in run.outcomes) == [*[""] * 6, "the queue is full"]


@pytest.mark.parametrize("requests", [REQUESTS, REQUESTS[:3]])
async def test_a_run_that_is_stopped_keeps_what_was_answered(
    target: Counting, requests: list[PlannedRequest]
) -> None:
    run = run_of(target)
    await run.send(REQUESTS[:2], 2, lambda _: None)
    target.held = asyncio.Event()
    task = asyncio.create_task(run.send(requests, 3, lambda _: None))
    await target.three_open.wait()
    task.cancel()
    await task
    assert run.stopped
    assert (len(run.outcomes), run.running) == (2, 3)
    assert target.open == 0


async def test_a_fault_of_ours_is_no_outcome(target: Counting) -> None:
    def report(_: BenchRun) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_of(target).send(REQUESTS, 2, report)


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
