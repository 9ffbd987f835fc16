"""Reading many streams from a gateway at once, as a bounded load on loopback."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class Burst:
    """What one closed burst of streams took."""

    tokens: int
    wall_s: float
    first_token_s: tuple[float, ...]  # of every stream, from its request


async def burst(url: str, model: str, streams: int, prompt: str, tokens: int) -> Burst:
    """`streams` completions of `tokens` tokens each, all at once."""
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:
        began_s = time.perf_counter()
        firsts = await asyncio.gather(
            *(_one(client, f"{url}/v1/completions", model, prompt, tokens) for _ in range(streams))
        )
        return Burst(streams * tokens, time.perf_counter() - began_s, tuple(firsts))


async def _one(client: httpx.AsyncClient, url: str, model: str, prompt: str, tokens: int) -> float:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    began_s = time.perf_counter()
    first_s = 0.0
    done = False
    async with client.stream("POST", url, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {") and not first_s:
                first_s = time.perf_counter() - began_s
            done = done or line == "data: [DONE]"
    assert done, "the stream ended early"
    return first_s
