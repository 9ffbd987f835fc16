"""kill -9 and SIGTERM for every process: streams go on, and nothing that was acknowledged is lost.

In this order, as the last test ends the cell.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from sax.client import AsyncClient
from sax.types import GenerateRequest, Message, ReplyOptions, SamplingParams, TokenChunk
from tests.end_to_end.cell import ADMIN, GATEWAY, SMOLLM2, Cell
from tests.end_to_end.two_replicas.conftest import SERVERS, both_ready
from tests.otlp_collector import Collector, Received

STREAMS = 4
CALLER = "00f067aa0ba902b7"
PROMPT = "The three primary colours are"
KEPT, GONE = "/sax/test/kept", "/sax/test/gone"
CHAT = (Message("user", "Tell me a story about a lighthouse."),)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ages": {"type": "array", "minItems": 20}},
        "required": ["name", "ages"],
    }
)
TOKENS = 120  # so many that none has ended when all have begun, however late this process reads
ASKED: dict[str, tuple[object, dict[str, Any]]] = {
    "greedy": ("The sea is", {"temperature": 0.0}),
    "seeded": (CHAT, {"temperature": 1.0, "seed": 7}),
    "log-probabilities": ("The sea is", {"temperature": 0.7, "seed": 3, "logprobs": 2}),
    "penalties": (CHAT, {"temperature": 0.0, "repetition_penalty": 1.3, "min_tokens": 50}),
    "a schema": (CHAT, {"temperature": 1.0, "seed": 5, "json_schema": SCHEMA}),
}


def asked(kind: str) -> GenerateRequest:
    prompt, fields = ASKED[kind]
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos="json_schema" not in fields, **fields)
    return GenerateRequest(
        model_id=SMOLLM2,
        prompt=prompt,  # pyright: ignore[reportArgumentType]
        sampling=sampling,
        reply=ReplyOptions(return_token_ids=True),
    )


async def answers(
    client: AsyncClient, requests: list[GenerateRequest], cell: Cell | None = None
) -> list[list[TokenChunk]]:
    """Return the answers' chunks; with a cell, its first server is killed once all have begun."""
    found: list[list[TokenChunk]] = [[] for _ in requests]

    async def kill() -> None:
        while min(map(len, found)) < 8:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        if cell is not None:
            assert all(chunks[-1].finish_reason is None for chunks in found)
            await asyncio.to_thread(cell.kill, SERVERS[0])

    pairs = zip(requests, found, strict=True)
    asks = (client.generate_to(request, chunks.append) for request, chunks in pairs)
    await asyncio.gather(kill(), *asks)
    return found


def whole(chunks: list[TokenChunk]) -> tuple[object, ...]:
    last = chunks[-1]
    return (
        "".join(chunk.text for chunk in chunks),
        [token for chunk in chunks for token in chunk.token_ids],
        [entry.text_offset for chunk in chunks for entry in chunk.logprobs],
        (last.finish_reason, last.completion_tokens, last.prompt_tokens),
    )


def test_a_killed_admin_loses_nothing_that_it_acknowledged_and_stops_no_request(
    twice: Cell,
) -> None:
    before = twice.text(PROMPT)
    for name in (KEPT, GONE):
        assert twice.sax("publish", name, "llama", "None", "0").returncode == 0
    assert twice.sax("unpublish", GONE).returncode == 0
    twice.kill(ADMIN)
    assert twice.text(PROMPT) == before, "the admin is not on the request path"
    twice.start(ADMIN)
    twice.eventually(twice.joined, "the model servers have joined again")
    both_ready(twice)
    assert twice.listed(KEPT)["spec"]["replicas"] == 0
    listed = twice.sax("ls", GONE)
    assert listed.returncode == 1
    assert GONE in listed.stderr
    assert twice.text(PROMPT) == before
    assert twice.sax("unpublish", KEPT).returncode == 0


def test_a_killed_gateway_serves_again(twice: Cell) -> None:
    before = twice.text(PROMPT)
    twice.kill(GATEWAY)
    twice.start(GATEWAY)
    twice.wait_until_up()
    assert twice.text(PROMPT) == before


def start_the_dead(cell: Cell) -> None:
    for name in SERVERS:
        if not cell.alive(name):
            cell.start(name)
    both_ready(cell)


def test_answers_whose_replica_is_killed_end_as_if_it_had_not_been(twice: Cell) -> None:
    first, admin = twice.plan.model_servers[0].address, twice.plan.admin_address
    unseeded = replace(asked("seeded"), sampling=SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    requests = [*map(asked, ASKED), unseeded]

    async def asks() -> tuple[list[list[TokenChunk]], list[list[TokenChunk]]]:
        async with AsyncClient(admin, preferred=first) as client:
            moved = await answers(client, requests, twice)
            seed = moved[-1][0].seed
            sampling = replace(unseeded.sampling, seed=seed)  # the one that was drawn
            again = [*requests[:-1], replace(unseeded, sampling=sampling)]
            return moved, await answers(client, again)

    start_the_dead(twice)
    moved, alone = asyncio.run(asks())
    assert list(map(whole, moved)) == list(map(whole, alone))
    assert sum(chunk.seed is not None for chunks in moved for chunk in chunks) == len(requests)


def stream_of(
    cell: Cell, prompt: str, tokens: int, headers: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream through the gateway."""
    body = {"model": SMOLLM2, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    asks = {**body, "messages": [{"role": "user", "content": prompt}], "stream": True}
    asks["stream_options"] = {"include_usage": True}
    with (
        httpx.Client(base_url=cell.url, timeout=120, trust_env=False, headers=headers) as http,
        http.stream("POST", "/v1/chat/completions", json=asks) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event["choices"]
    )


def streams_of(cell: Cell, signal: str = "") -> list[list[dict[str, Any]]]:
    """Return the events of streams at the same time; one of the servers gets a signal meanwhile."""
    with ThreadPoolExecutor(STREAMS) as threads:
        begun = threading.Barrier(STREAMS + 1)

        def read(number: int) -> list[dict[str, Any]]:
            events: list[dict[str, Any]] = []
            headers = {"traceparent": f"00-{trace_of(number)}-{CALLER}-01"} if signal else {}
            for event in stream_of(cell, f"Count from {number} upwards.", 100, headers):
                events.append(event)
                if len(events) == 5:
                    begun.wait(60)
            return events

        streams = [threads.submit(read, number) for number in range(STREAMS)]
        begun.wait(60)
        if signal:
            getattr(cell, signal)(SERVERS[1])
        return [stream.result() for stream in streams]


def trace_of(number: int) -> str:
    return f"{number + 1:032x}"


def answers_of(spans: list[Received], number: int) -> tuple[Received | None, list[Received]]:
    """The gateway's call for a stream, and what answered it, in order of time."""
    mine = [each for each in spans if each.trace == trace_of(number)]
    roots = {each.id for each in mine if each.parent == CALLER}
    call = next((each for each in mine if each.parent in roots), None)
    found = [each for each in mine if call is not None and each.parent == call.id]
    return call, sorted(found, key=lambda each: each.message.start_time_unix_nano)


@pytest.mark.parametrize("signal", ["terminate", pytest.param("kill", marks=pytest.mark.nightly)])
def test_streams_of_the_gateway_outlive_either_replica(
    twice: Cell, collector: Collector, signal: str
) -> None:
    start_the_dead(twice)  # which loads its model again, and says the same
    alone = streams_of(twice)
    collector.spans.clear()
    found = streams_of(twice, signal)
    assert list(map(text_of, found)) == list(map(text_of, alone))
    assert not any("error" in event for events in found for event in events)
    assert [events[-1]["usage"]["completion_tokens"] for events in found] == [100] * STREAMS
    if signal == "terminate":
        assert twice.ended(SERVERS[1]) == 0
        check_links(collector)


def check_links(collector: Collector) -> None:
    """What moved is one call that two replicas answered, of which the second links to the first."""

    def moved(spans: list[Received]) -> list[tuple[Received | None, list[Received]]]:
        every = (answers_of(spans, number) for number in range(STREAMS))
        return [each for each in every if len(each[1]) == 2]

    for call, (first, second) in moved(collector.wait(lambda spans: bool(moved(spans)))):
        assert call is not None
        assert [each.span_id.hex() for each in second.message.links] == [first.id]
        assert int(str(second.attributes["sax.answer.resumed_tokens"])) > 0
        assert call.attributes["gen_ai.usage.output_tokens"] == 100


def test_without_another_replica_a_stream_ends_with_an_error(twice: Cell) -> None:
    if twice.alive(SERVERS[1]):
        twice.kill(SERVERS[1])
    twice.eventually(lambda: twice.ready_replicas() == 1, "one replica is left")
    events: list[dict[str, Any]] = []
    for event in stream_of(twice, "Tell me a story.", 400):
        events.append(event)
        if len(events) == 10:
            twice.kill(SERVERS[0])
    assert events[-1]["error"]["code"] == "replica_lost"
    assert "the answer was interrupted" in events[-1]["error"]["message"]


def test_every_process_drains_on_sigterm_and_exits_0(twice: Cell) -> None:
    """A model server did so in mid-stream."""
    for name in (GATEWAY, ADMIN):
        assert twice.stop(name) == 0, twice.log(name)
