"""One run: streams through a gateway, and their two model servers killed one after the other."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sax.auth.credentials import acting_as
from sax.client import AsyncClient
from sax.errors import SaxError
from sax.types import ServableStatus
from tests.model_server.fake_model import answer_to, text_of
from tests.processes import free_ports
from tests.tools.chaos.cell import OPERATOR, RealCell, Server, real_cell
from tests.tools.chaos.child import Child

MODEL = "/sax/test/counting"
TOKENS = 120
STEP_S = 0.02
_READY_S = 60.0
_REFUSED_S = 0.5  # before a reader asks again
_PAUSE_S = 0.7  # most between the return of a replica and the next kill


@dataclass
class Figures:
    """Counts of a run."""

    kills: int = 0
    streams: int = 0
    in_flight: int = 0  # streams that a kill met
    refused: int = 0  # requests that found all places taken, before any of their answer
    unreachable: int = 0  # requests that found no replica, before any of their answer
    pauses_s: list[float] = field(default_factory=list[float])  # the longest of each stream
    faults: list[str] = field(default_factory=list[str])  # of streams that broke or said wrong

    def summary(self) -> dict[str, object]:
        longest = sorted(self.pauses_s) or [0.0]
        return {
            "kills": self.kills,
            "streams": self.streams,
            "streams that a kill met": self.in_flight,
            "refused for want of places": self.refused,
            "refused while no replica was there": self.unreachable,
            "broken or wrong": len(self.faults),
            "longest pause in a stream, s: median, max": [
                round(longest[len(longest) // 2], 2),
                round(longest[-1], 2),
            ],
        }


class Refused(Exception):
    """All places are taken: nothing of the answer was sent."""


class Unreachable(Exception):
    """The one replica that was ready has just been killed: nothing of the answer was sent."""


class Readers:
    """Clients that stream answers through the gateway, one after the other, and check each."""

    def __init__(self, url: str, headers: dict[str, str], figures: Figures) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=120, headers=headers, trust_env=False)
        self._figures = figures
        self.running = 0
        self.stopping = False

    async def read(self, reader: int) -> None:
        """Stream until told to stop; the last answer is read to its end."""
        asked = 0
        while not self.stopping:
            asked += 1
            prompt = f"reader {reader} asks {asked}"
            self.running += 1
            try:
                text = await self._stream(prompt)
            except Refused:
                self._figures.refused += 1
                await asyncio.sleep(_REFUSED_S)
                continue
            except Unreachable:
                self._figures.unreachable += 1
                await asyncio.sleep(_REFUSED_S)
                continue
            except (httpx.HTTPError, ValueError) as exc:
                self._figures.faults.append(f"{prompt}: {type(exc).__name__}: {exc}")
            else:
                if text != text_of(answer_to(prompt, TOKENS)):
                    self._figures.faults.append(f"{prompt}: {text!r}")
            finally:
                self.running -= 1
            self._figures.streams += 1

    async def until_up(self) -> None:
        """Wait until the gateway answers."""
        async with asyncio.timeout(_READY_S):
            while not await self._up():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)

    async def _up(self) -> bool:
        try:
            return (await self._http.get("/healthz")).is_success
        except httpx.TransportError:
            return False

    async def close(self) -> None:
        await self._http.aclose()

    async def _stream(self, prompt: str) -> str:
        """Raises Refused, Unreachable, or ValueError for another error of the gateway."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        text, last_s, longest_s = "", time.monotonic(), 0.0
        async with self._http.stream(
            "POST", "/v1/completions", json={**body, "stream": True}
        ) as reply:
            if reply.status_code == 429:
                raise Refused
            if reply.status_code == 503:
                raise Unreachable
            if reply.status_code != 200:
                told = (await reply.aread()).decode()
                # The only one without a token where a replica was killed: told before its answer.
                raise Unreachable if "not_retried" in told else ValueError(told)
            async for line in reply.aiter_lines():
                longest_s = max(longest_s, time.monotonic() - last_s)
                last_s = time.monotonic()
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                text += event["choices"][0]["text"]
        self._figures.pauses_s.append(longest_s)
        return text


async def play(kills: int, readers: int, folder: Path, seed: int = 1) -> Figures:
    """Kill one of two model servers so often while readers stream. Raises AssertionError if a
    process ends by itself."""
    figures, luck = Figures(), random.Random(seed)
    async with AsyncExitStack() as stack:
        cell = await stack.enter_async_context(
            real_cell("folder", folder, admins=1, servers=2, callers=(), seed=seed, step_s=STEP_S)
        )
        stack.enter_context(acting_as(cell.tokens[OPERATOR]))
        client = await stack.enter_async_context(AsyncClient(cell.addresses[0]))
        await client.publish(MODEL, "fake", "None", 2)
        gateway, url = _gateway(cell, folder)
        stack.callback(gateway.end)
        gateway.start()
        streams = Readers(url, {"authorization": f"Bearer {cell.tokens[OPERATOR]}"}, figures)
        stack.push_async_callback(streams.close)
        await _both_ready(cell, client)
        await streams.until_up()
        tasks = [asyncio.create_task(streams.read(reader)) for reader in range(readers)]
        try:
            for _ in range(kills):
                await asyncio.sleep(luck.uniform(0.1, _PAUSE_S))
                await _kill(luck.choice(cell.servers), figures, streams)
                await _both_ready(cell, client)
                gateway.check()
        finally:
            streams.stopping = True
            await asyncio.gather(*tasks)
    return figures


async def _kill(server: Server, figures: Figures, streams: Readers) -> None:
    figures.in_flight += streams.running
    figures.kills += 1
    await asyncio.to_thread(server.child.kill)
    server.child.start()


async def _both_ready(cell: RealCell, client: AsyncClient) -> None:
    """Wait until both servers say that they have the model, and the admin server knows it."""
    async with asyncio.timeout(_READY_S):
        while not all([await _has_it(cell, each) for each in cell.servers]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while (await client.list(MODEL)).ready_replicas != 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


async def _has_it(cell: RealCell, server: Server) -> bool:
    try:
        status = await cell.status_of(server)
    except SaxError:
        return False
    return any(each.status is ServableStatus.LOADED for each in status.servables)


def _gateway(cell: RealCell, folder: Path) -> tuple[Child, str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "http_gateway", f"--port={port}"]
    env = {"SAX_TOKEN": cell.tokens[OPERATOR]}
    child = Child("gateway", [*command, f"--admin={cell.addresses[0]}"], folder, env)
    return child, f"http://127.0.0.1:{port}"
