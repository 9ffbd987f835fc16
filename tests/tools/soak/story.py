"""A soak of one cell: random requests of all kinds at once, and what became of each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sax.client import AsyncClient
from sax.errors import DeadlineExceeded, InvalidRequest, QueueFull
from tests.demo_model import ROOT, demo_model
from tests.end_to_end import passes_model
from tests.end_to_end.cell import GATEWAY, MODEL_SERVER, SMOLLM2, Cell
from tests.model_server.checkpoints.adapter_folder import write_demo_adapter
from tests.tools.soak.random_request import ADAPTED, EMBEDDER, RandomRequest, random_request, text
from tests.tools.soak.rude_client import be_rude

AT_ONCE = 24
RUDE = 4  # beside them
MINILM = ROOT / ".cache" / "models" / "all-MiniLM-L6-v2"
FLAGS = ("--slots=8", "--max_context=2048", "--strict_compile")


@dataclass(slots=True)
class Soak:
    """Counts of outcomes, by kind of request; `lost` tells of every answer that went missing."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    lost: list[str] = field(default_factory=list[str])
    compiles: float = 0.0
    left_behind: dict[str, float] = field(default_factory=dict[str, float])
    given_back_s: float = 0.0  # after the last caller had its answer or left
    # Bytes of the model server and of the gateway, at the start, half-way and at the end.
    resident: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def total(self, outcome: str) -> int:
        return sum(count for (_, each), count in self.outcomes.items() if each == outcome)


def publish(cell: Cell, folder: Path) -> None:
    """Publish one model of each kind to the one server; folder: for checkpoints made here."""
    cell.publish(str(demo_model()), overrides={"MAX_ADAPTERS": 1, "MAX_ADAPTER_RANK": 2})
    adapter = write_demo_adapter(folder / "adapter", demo_model(), seed=0)
    cell.publish(str(adapter), model=ADAPTED, model_path="lora", overrides={"BASE": SMOLLM2})
    cell.publish(str(MINILM), model=EMBEDDER, model_path="auto")
    (folder / "passes").mkdir()
    passes_model.publish_passes(cell, folder / "passes")


async def soak(cell: Cell, seconds: float, seed: int) -> Soak:
    """Send requests for this long, wait for every answer, and read what the server still holds."""
    made = Soak()
    began_s = time.monotonic()
    ends_s = began_s + seconds
    made.resident.append(_resident(cell))
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=cell.url, timeout=120, trust_env=False, limits=limits) as http,
        AsyncClient(cell.plan.admin_address) as client,
        asyncio.TaskGroup() as users,
    ):
        for number in range(AT_ONCE):
            users.create_task(_user(made, http, client, random.Random(f"{seed} {number}"), ends_s))
        for number in range(RUDE):
            users.create_task(_rude(made, cell, random.Random(f"{seed} rude {number}"), ends_s))
        await asyncio.sleep(seconds / 2)
        made.resident.append(_resident(cell))
    await asyncio.to_thread(_read_rest, cell, made)
    made.resident.append(_resident(cell))
    return made


def _resident(cell: Cell) -> tuple[int, int]:
    return cell.resident(MODEL_SERVER), cell.resident(GATEWAY)


async def _rude(made: Soak, cell: Cell, draw: random.Random, ends_s: float) -> None:
    address = "127.0.0.1", cell.plan.gateway_port
    while time.monotonic() < ends_s:
        try:
            way, outcome = await be_rude(address, draw)
        except (OSError, AssertionError, TimeoutError) as exc:
            way, outcome = "rude client", "lost"
            made.lost.append(f"{type(exc).__name__}: {exc}")
        made.outcomes[way, outcome] += 1


async def _user(
    made: Soak,
    http: httpx.AsyncClient,
    client: AsyncClient,
    draw: random.Random,
    ends_s: float,
) -> None:
    while time.monotonic() < ends_s:
        if draw.random() < 0.15:
            kind, asking = _call(client, draw)
            said = ""
        else:
            request = random_request(draw)
            kind = f"{request.route}{', streamed' if request.streams else ''}"
            asking, said = _sent(http, request), json.dumps(request.body)[:500]
        try:
            outcome = await asking
        except (httpx.HTTPError, AssertionError) as exc:
            outcome = "lost"
            made.lost.append(f"{kind}: {type(exc).__name__}: {exc} {said}")
        made.outcomes[kind, outcome] += 1


def _call(client: AsyncClient, draw: random.Random) -> tuple[str, Awaitable[str]]:
    """A call that HTTP does not have."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "score": lambda: client.score(SMOLLM2, text(draw, 30), [text(draw, 5), text(draw, 9)]),
        "tokenize": lambda: client.tokenize(SMOLLM2, text(draw, 400)),
        "gradient": lambda: client.gradient(passes_model.MODEL, text(draw, 3), text(draw, 2)),
        "rerank": lambda: client.rerank(passes_model.MODEL, "a b", [text(draw, 3)] * 3),
        "embed by a decoder": lambda: client.embed(
            passes_model.MODEL, [text(draw, 4)] * 2, dimensions=draw.choice((0, 4))
        ),
        "Saxml's Embed": lambda: client.saxml_embed(EMBEDDER, text(draw, 30)),
        "score within a time": lambda: client.score(
            SMOLLM2, text(draw, 300), [text(draw, 5)], timeout_s=draw.uniform(0.01, 1.0)
        ),
    }
    kind = draw.choice(sorted(calls))

    async def ask() -> str:
        try:
            assert await calls[kind](), "an empty answer"
        except DeadlineExceeded:
            return "late"
        except QueueFull:
            return "full"
        except InvalidRequest:
            return "refused"
        return "answered"

    return kind, ask()


async def _sent(http: httpx.AsyncClient, request: RandomRequest) -> str:
    """Send one request; the caller of some goes away."""
    asking = _streamed(http, request) if request.streams else _whole(http, request)
    try:
        async with asyncio.timeout(request.leaves_after_s):
            return await asking
    except TimeoutError:
        return "left"


async def _whole(http: httpx.AsyncClient, request: RandomRequest) -> str:
    reply = await http.post(request.route, json=request.body)
    return _outcome(reply.status_code, reply.text)


async def _streamed(http: httpx.AsyncClient, request: RandomRequest) -> str:
    async with http.stream("POST", request.route, json=request.body) as reply:
        if reply.status_code != 200:
            return _outcome(reply.status_code, (await reply.aread()).decode())
        last = ""
        async for line in reply.aiter_lines():
            last = line or last
    if '"code":"deadline_exceeded"' in last:
        return "late"
    assert last == "data: [DONE]", f"the stream ended with {last[:300]}"
    return "answered"


def _outcome(status: int, said: str) -> str:
    """Name an outcome; any other status is a lost answer."""
    outcome = {200: "answered", 400: "refused", 422: "refused", 429: "full", 504: "late"}
    assert status in outcome, f"{status}: {said[:300]}"
    return outcome[status]


def _read_rest(cell: Cell, made: Soak) -> None:
    """Read what is left once every caller has its answer or is gone."""
    began_s = time.monotonic()
    cell.eventually(lambda: not any(_rest(cell).values()), "everything was given back", 60)
    made.given_back_s = time.monotonic() - began_s
    made.left_behind = _rest(cell)
    page = cell.metrics_page().splitlines()
    (made.compiles,) = (
        float(line.split()[1]) for line in page if line.startswith("sax_compiles_while_serving_t")
    )


def _rest(cell: Cell) -> dict[str, float]:
    """Return the gauges of work in progress, of the model server and of the gateway."""
    figures = ("sax_slots_used", "sax_pages_used", "sax_requests_running", "sax_requests_waiting")
    rest = {name: cell.metric(name) for name in figures}
    in_flight = "sax_gateway_requests_in_flight"
    lines = cell.http.get("/metrics").text.splitlines()
    (rest[in_flight],) = (
        # less the one that reads it
        float(line.split()[1]) - 1
        for line in lines
        if line.startswith(in_flight + " ")
    )
    return rest
