"""Metrics: the models that may be labels, and those of the process."""

from __future__ import annotations

import re

import httpx

from http_gateway.metrics import GatewayMetrics
from sax.errors import AdminUnavailable
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published

ASK = {"model": "smollm2", "prompt": "abc"}
LLAMA, SMOLLM2 = "/sax/test/llama", "/sax/test/smollm2"


def models_in(text: str) -> set[str]:
    return set(re.findall(r'model="([^"]*)"', text))


async def test_only_published_models_are_labels(http: httpx.AsyncClient) -> None:
    for name in ("zzz", "/sax/test/zzz", "x" * 300, "smollm2", "/sax/test/llama"):
        await http.post("/v1/completions", json={**ASK, "model": name})
        await http.get(f"/v1/models/{name}")
    assert models_in((await http.get("/metrics")).text) == {"", SMOLLM2, LLAMA}


async def test_the_series_of_a_model_go_when_it_is_unpublished_and_only_those(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    for name in ("smollm2", "llama"):
        for stream in (False, True):
            await http.post("/v1/completions", json={**ASK, "model": name, "stream": stream})
    assert models_in((await http.get("/metrics")).text) == {SMOLLM2, LLAMA}
    del cell.models[LLAMA]
    assert (await http.get("/v1/models")).status_code == 200
    text = (await http.get("/metrics")).text
    assert models_in(text) == {"", SMOLLM2}
    assert f'sax_gateway_prompt_tokens_total{{model="{SMOLLM2}"}} 6.0' in text


async def test_series_stay_while_the_admin_is_away(
    cell: FakeCell, http: httpx.AsyncClient, connect: Connect
) -> None:
    await http.post("/v1/completions", json=ASK)
    cell.admin_failure = AdminUnavailable("away")
    await http.get("/v1/models")
    assert SMOLLM2 in models_in((await http.get("/metrics")).text)


async def test_an_unknown_model_that_is_tried_without_the_admin_is_no_label(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.admin_failure = AdminUnavailable("away")
    cell.models["/sax/test/new"] = published("/sax/test/new")
    asked = await http.post("/v1/completions", json={**ASK, "model": "/sax/test/new"})
    assert asked.status_code == 200
    assert models_in((await http.get("/metrics")).text) == {""}


def test_the_process_tells_of_itself() -> None:
    text = GatewayMetrics().expose(frozenset()).decode()
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        assert re.search(rf"^process_{name} [0-9.e+]+$", text, re.MULTILINE), name
