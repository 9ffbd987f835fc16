"""Users of one cell at once, for attacks that watch what becomes of each request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell

_TIMEOUT_S = 120.0
_WARM_UP = 8  # tokens of a stream that certainly runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a request."""

    tokens: int
    error: str  # "" if the answer is whole
    took_s: float
    ended_s: float  # on the monotonic clock


class Users:
    """Sends completions through the gateway, any number at a time."""

    def __init__(self, cell: Cell) -> None:
        self._http = httpx.AsyncClient(
            base_url=cell.url,
            timeout=_TIMEOUT_S,
            trust_env=False,
            headers=cell.headers,
            limits=httpx.Limits(max_connections=None),
        )
        self._tokens: dict[asyncio.Task[Answer], int] = {}

    async def __aenter__(self) -> Users:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in self._tokens:
            stream.cancel()
        await self._http.aclose()

    def begin(self, tokens: int) -> asyncio.Task[Answer]:
        """Begin a stream of so many tokens."""
        stream = asyncio.create_task(self._stream(tokens))
        self._tokens[stream] = 0
        return stream

    async def warm(self, streams: Iterable[asyncio.Task[Answer]]) -> None:
        """Wait until every stream has its first tokens."""
        async with asyncio.timeout(60):
            for stream in streams:
                while self._tokens[stream] < _WARM_UP:
                    assert not stream.done(), stream.result()
                    await asyncio.sleep(0.01)

    async def short(self, after_s: float = 0.0) -> Answer:
        """Ask for four tokens, later."""
        await asyncio.sleep(after_s)
        return await self._stream(4)

    async def _stream(self, tokens: int) -> Answer:
        task = asyncio.current_task()
        began_s, count, error = time.monotonic(), 0, ""
        body = {
            "model": SMOLLM2,
            "prompt": "Once upon a time",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,  # tokens of several steps may share an event
        }
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as reply:
                if reply.status_code != 200:
                    error = f"{reply.status_code} {(await reply.aread()).decode()[:1000]}"
                async for line in reply.aiter_lines():
                    if '"error"' in line:
                        error = error or line[:1000]
                    elif line.startswith("data: {"):
                        count += _tokens_in(line)
                        if task in self._tokens:
                            self._tokens[task] = count
        except httpx.HTTPError as exc:
            error = f"{type(exc).__name__}: {exc}"
        ended_s = time.monotonic()
        return Answer(tokens=count, error=error, took_s=ended_s - began_s, ended_s=ended_s)


def _tokens_in(line: str) -> int:
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return sum(len(choice.get("token_ids") or ()) for choice in choices)
