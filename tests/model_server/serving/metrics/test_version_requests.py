"""Requests by version: what a canary is judged by."""

from __future__ import annotations

import asyncio
import urllib.request

from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, Stream, serving

OLD, NEW = "a" * 32, "b" * 32


async def counted(served: Served) -> dict[str, float]:
    """The figures by version and outcome."""
    url = f"http://{served.server.metrics_address}/metrics"
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    name = f'sax_version_requests_total{{model="{MODEL}",outcome='
    lines = [line.removeprefix(name) for line in page.splitlines() if line.startswith(name)]
    return {label: float(value) for label, _, value in (line.rpartition(" ") for line in lines)}


async def test_answers_and_errors_are_counted_by_version() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(MODEL, version=OLD)
        stream = Stream(served)
        await stream.ask(1, max_tokens=2)
        await stream.ask(2, max_tokens=2)
        await stream.ask(3, "x" * 10_000)  # more than the context holds
        await stream.until_over(1, 2, 3)
        found = await counted(served)
        assert found == {f'"success",version="{OLD}"}}': 2.0, f'"error",version="{OLD}"}}': 1.0}

        await served.load(MODEL, version=NEW)
        assert await counted(served) == {
            f'"success",version="{NEW}"}}': 0.0,
            f'"error",version="{NEW}"}}': 0.0,
        }
