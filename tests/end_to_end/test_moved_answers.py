"""Streams that survive their replica: kill -9 or SIGTERM in mid-stream, and the text is whole."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sax.client import AsyncClient
from sax.types import GenerateRequest, Message, ReplyOptions, SamplingParams, TokenChunk
from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell, local_plan

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

SERVERS = (f"{MODEL_SERVER} 0", f"{MODEL_SERVER} 1")
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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, gguf: Path) -> Iterator[Cell]:
    """A cell with two replicas, in float32, so that rounding is the same in any batch."""
    flags = ("--slots=8", "--max_context=512", "--drain_seconds=1")
    with Cell(local_plan(tmp_path_factory.mktemp("pair"), *flags, servers=2)) as running:
        running.publish(str(gguf), replicas=2, overrides={"DTYPE": "float32"})
        both_ready(running)
        yield running


def both_ready(cell: Cell) -> None:
    cell.eventually(lambda: cell.listed()["ready_replicas"] == 2, "both replicas are ready")


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


def test_answers_whose_replica_is_killed_end_as_if_it_had_not_been(pair: Cell) -> None:
    first, admin = pair.plan.model_servers[0].address, pair.plan.admin_address
    unseeded = replace(asked("seeded"), sampling=SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    requests = [*map(asked, ASKED), unseeded]

    async def asks() -> tuple[list[list[TokenChunk]], list[list[TokenChunk]]]:
        async with AsyncClient(admin, preferred=first) as client:
            moved = await answers(client, requests, pair)
            seed = moved[-1][0].seed
            sampling = replace(unseeded.sampling, seed=seed)  # the one that was drawn
            again = [*requests[:-1], replace(unseeded, sampling=sampling)]
            return moved, await answers(client, again)

    moved, alone = asyncio.run(asks())
    pair.start(SERVERS[0])
    both_ready(pair)
    assert list(map(whole, moved)) == list(map(whole, alone))
    assert sum(chunk.seed is not None for chunks in moved for chunk in chunks) == len(requests)


def stream_of(cell: Cell, prompt: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream through the gateway."""
    body = {"model": SMOLLM2, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    asks = {**body, "messages": [{"role": "user", "content": prompt}], "stream": True}
    asks["stream_options"] = {"include_usage": True}
    with (
        httpx.Client(base_url=cell.url, timeout=120, trust_env=False) as http,
        http.stream("POST", "/v1/chat/completions", json=asks) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event["choices"]
    )


def streams_of(cell: Cell, prompts: list[str], signal: str = "") -> list[list[dict[str, Any]]]:
    """Return the events of streams at the same time; one of the servers gets a signal meanwhile."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        begun = threading.Barrier(len(prompts) + 1)

        def read(prompt: str) -> list[dict[str, Any]]:
            events: list[dict[str, Any]] = []
            for event in stream_of(cell, prompt, 100):
                events.append(event)
                if len(events) == 5:
                    begun.wait(60)
            return events

        streams = [threads.submit(read, prompt) for prompt in prompts]
        begun.wait(60)
        if signal:
            getattr(cell, signal)(SERVERS[1])
        return [stream.result() for stream in streams]


@pytest.mark.parametrize("signal", ["kill", pytest.param("terminate", marks=pytest.mark.nightly)])
def test_streams_of_the_gateway_outlive_either_replica(pair: Cell, signal: str) -> None:
    prompts = [f"Count from {n} upwards." for n in range(4)]
    alone = streams_of(pair, prompts)
    found = streams_of(pair, prompts, signal)
    if signal == "terminate":
        assert pair.ended(SERVERS[1]) == 0
    assert list(map(text_of, found)) == list(map(text_of, alone))
    assert not any("error" in event for events in found for event in events)
    assert [events[-1]["usage"]["completion_tokens"] for events in found] == [100] * 4
    pair.start(SERVERS[1])
    both_ready(pair)


def test_without_another_replica_a_stream_ends_with_an_error_that_says_so(pair: Cell) -> None:
    pair.kill(SERVERS[1])
    pair.eventually(lambda: pair.listed()["ready_replicas"] == 1, "one replica is left")
    events: list[dict[str, Any]] = []
    for event in stream_of(pair, "Tell me a story.", 400):
        events.append(event)
        if len(events) == 10:
            pair.kill(SERVERS[0])
    assert events[-1]["error"]["code"] == "replica_lost"
    assert "the answer was interrupted" in events[-1]["error"]["message"]
