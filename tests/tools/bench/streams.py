"""Reading many streams from a gateway at once, as a bounded load on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Burst:
    """What one closed burst of streams took."""

    tokens: int
    wall_s: float
    first_token_s: tuple[float, ...]  # of every stream, from its request


@dataclass(frozen=True, slots=True)
class Read:
    """One stream, read to its end."""

    first_token_s: float
    last: str  # the last line of data


async def burst(url: str, model: str, streams: int, prompt: str, tokens: int) -> Burst:
    """`streams` completions of `tokens` tokens each, all at once."""
    began_s = time.perf_counter()
    reads = await _read_all(url, model, [prompt] * streams, tokens, {})
    wall_s = time.perf_counter() - began_s
    return Burst(streams * tokens, wall_s, tuple(read.first_token_s for read in reads))


async def counted_burst(url: str, model: str, prompts: Sequence[str], tokens: int) -> Burst:
    """A completion per prompt, all at once; the servers say how many tokens they gave."""
    began_s = time.perf_counter()
    usage = {"stream_options": {"include_usage": True}}
    reads = await _read_all(url, model, prompts, tokens, usage)
    wall_s = time.perf_counter() - began_s
    given = sum(json.loads(read.last)["usage"]["completion_tokens"] for read in reads)
    return Burst(given, wall_s, tuple(read.first_token_s for read in reads))


async def _read_all(
    url: str, model: str, prompts: Sequence[str], tokens: int, fields: Mapping[str, Any]
) -> list[Read]:
    limits = httpx.Limits(max_connections=len(prompts))
    body = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(limits=limits, timeout=300, trust_env=False) as client:
        requests = ({**body, **fields, "prompt": prompt, "stream": True} for prompt in prompts)
        return await asyncio.gather(*(read_stream(client, url, request) for request in requests))


async def read_stream(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Read:
    began_s = time.perf_counter()
    first_s, last, done = 0.0, "", False
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter() - began_s
                last = line.removeprefix("data: ")
            done = done or line == "data: [DONE]"
    assert done, "the stream ended early"
    return Read(first_s, last)


@asynccontextmanager
async def open_streams(url: str, model: str, streams: int) -> AsyncGenerator[None, None]:
    """Hold this many streams open, each past its first event and read no further."""
    body = {"model": model, "prompt": "once", "max_tokens": 1000, "stream": True}
    limits = httpx.Limits(max_connections=streams)
    async with (
        httpx.AsyncClient(limits=limits, timeout=300, trust_env=False) as client,
        AsyncExitStack() as held,
    ):
        request = client.build_request(
            "POST", f"{url}/v1/completions", json=body | {"stream": True}
        )
        await asyncio.gather(*(_begin(client, request, held) for _ in range(streams)))
        yield


async def _begin(client: httpx.AsyncClient, request: httpx.Request, held: AsyncExitStack) -> None:
    response = await client.send(request, stream=True)
    held.push_async_callback(response.aclose)
    response.raise_for_status()
    await anext(response.aiter_bytes())
