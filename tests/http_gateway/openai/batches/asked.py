"""What the tests of batches ask, over HTTP, and how they wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
from fastapi import FastAPI

from http_gateway.openai.batches.batch_run import BatchPace
from sax.types import GenerateRequest, TokenChunk
from tests.http_gateway.fake_cell import FakeCell, published

FAST = BatchPace(
    beat_s=0.01, patience_s=0.2, flush_s=0.01, poll_s=0.01, retry_s=0.01, last_flush_s=1
)
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def chat(id: str, text: str = "abc", **fields: Any) -> dict[str, Any]:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], **fields}
    return {"custom_id": id, "method": "POST", "url": CHAT, "body": body}


def quick(app: FastAPI) -> FastAPI:
    app.state.batches._pace = FAST
    return app


class StoppingCell(FakeCell):
    """Answers so many requests; the others wait for ever."""

    def __init__(self, count: int) -> None:
        super().__init__(published())
        self.count = count

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        if len(self.requests) >= self.count:
            self.requests.append(request)
            await asyncio.Event().wait()
        await super().generate_to(request, sink, timeout_s)


async def upload(http: httpx.AsyncClient, lines: list[Any]) -> str:
    data = b"".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
    )
    reply = await http.post(
        "/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"}
    )
    return reply.json()["id"]


async def start(
    http: httpx.AsyncClient, lines: list[Any], endpoint: str = CHAT, **fields: Any
) -> dict[str, Any]:
    body = {"input_file_id": await upload(http, lines), "endpoint": endpoint, **fields}
    reply = await http.post("/v1/batches", json={"completion_window": "24h", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def until(
    http: httpx.AsyncClient, id: str, good: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    while True:
        batch = (await http.get(f"/v1/batches/{id}")).json()
        if good(batch):
            return batch
        await asyncio.sleep(0.01)


async def ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    return await until(http, id, lambda batch: batch["status"] in ENDED)


async def lines_in(http: httpx.AsyncClient, file_id: str | None) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    text = (await http.get(f"/v1/files/{file_id}/content")).text
    lines = [json.loads(line) for line in text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)  # none is answered twice
    return {line["custom_id"]: line for line in lines}
