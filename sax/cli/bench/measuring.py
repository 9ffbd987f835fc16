"""Measuring one target from the command line: opens it, warms it up, runs, shows progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sax.cli.bench.cell_target import CellTarget
from sax.cli.bench.openai_target import OpenAiTarget
from sax.cli.bench.run import BenchRun
from sax.cli.bench.target import BenchTarget
from sax.cli.bench.workload import PlannedRequest
from sax.cli.display import Display
from sax.cli.stages import ProgressStage
from sax.client import AsyncClient

_TENTHS = 10  # of a run: where the output is no terminal, a line for each


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The server that the command line names."""

    model: str | None  # None: the only one at `url`
    url: str | None  # None: a cell, through the SDK
    admin: str | None
    chat: bool
    api_key: str | None
    timeout_s: float


def measure(
    choice: TargetChoice,
    requests: Sequence[PlannedRequest],
    concurrency: int | None,
    display: Display,
) -> BenchRun:
    """Send the requests; Ctrl-C ends it early. Raises SaxError if the target takes none."""

    async def run() -> BenchRun:
        async with _opened(choice) as target:
            await target.prepare()
            made = BenchRun(target, len(requests))
            display.show([_stage(made)])
            await made.send(requests, concurrency, lambda run: display.show([_stage(run)]))
            return made

    return asyncio.run(run())


@asynccontextmanager
async def _opened(choice: TargetChoice) -> AsyncGenerator[BenchTarget]:
    if choice.url is None:
        async with AsyncClient(choice.admin) as client:
            yield CellTarget(client, choice.model or "", choice.chat, choice.timeout_s)
        return
    import httpx

    headers = {"authorization": f"Bearer {choice.api_key}"} if choice.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=choice.timeout_s) as http:
        yield OpenAiTarget(http, choice.url, choice.model, choice.chat)


def _stage(run: BenchRun) -> ProgressStage:
    done = len(run.outcomes)
    tenth = done * _TENTHS // run.total
    return ProgressStage("bench", f"{tenth * _TENTHS} % answered:", done, run.total, "requests")
