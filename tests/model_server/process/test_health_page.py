"""What probes and scrapers see, over real HTTP, and what makes them see it."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from model_server.process.health_page import (
    NOTHING_CAME_S,
    STUCK_S,
    HealthPage,
    LoopWatch,
    why_not_ready,
)
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Stream, serving
from tests.model_server.waiting import until


@pytest.fixture
def page() -> Iterator[HealthPage]:
    page = HealthPage()
    page.serve("127.0.0.1", 0)
    yield page
    page.close()


def ask(page: HealthPage, path: str) -> tuple[int, str]:
    reply = httpx.get(f"http://127.0.0.1:{page.port}{path}", trust_env=False)
    return reply.status_code, reply.text


def test_a_process_that_starts_is_alive_and_not_ready(page: HealthPage) -> None:
    assert ask(page, "/healthz") == (200, "alive\n")
    assert ask(page, "/readyz") == (503, "starting\n")
    assert ask(page, "/metrics")[0] == 503


def test_a_host_says_what_it_waits_for_until_it_is_ready(page: HealthPage) -> None:
    page.waiting = lambda: "waiting for all 8 hosts of this replica"
    assert ask(page, "/readyz") == (503, "waiting for all 8 hosts of this replica\n")
    page.waiting = lambda: ""
    assert ask(page, "/readyz") == (200, "ready\n")


def test_one_that_only_a_restart_would_help_is_neither_alive_nor_ready(page: HealthPage) -> None:
    page.trouble, page.waiting = (lambda: "stuck"), (lambda: "")
    assert ask(page, "/healthz") == (503, "stuck\n")
    assert ask(page, "/readyz") == (503, "stuck\n")


def test_figures_are_those_of_the_registry(page: HealthPage) -> None:
    registry = CollectorRegistry()
    Gauge("sax_answer", "the answer", registry=registry).set(42)
    page.show(registry)
    assert "sax_answer 42.0" in ask(page, "/metrics")[1]


def test_the_memory_plan_is_a_page_of_text(page: HealthPage) -> None:
    page.memory = lambda: "model  weights\nfree"
    assert ask(page, "/memory") == (200, "model  weights\nfree\n")


def test_another_path_is_told_which_there_are(page: HealthPage) -> None:
    status, text = ask(page, "/health")
    assert status == 404
    assert all(path in text for path in ("/healthz", "/readyz", "/metrics"))


def test_a_name_that_a_stranger_gave_this_machine_reads_nothing(page: HealthPage) -> None:
    """DNS rebinding: every page of the web can send requests here."""
    for host, status in (("localhost", 200), ("evil.example", 403)):
        url = f"http://127.0.0.1:{page.port}/memory"
        assert httpx.get(url, headers={"host": host}, trust_env=False).status_code == status


def test_head_is_answered_as_get_is_without_a_body(page: HealthPage) -> None:
    page.show(CollectorRegistry())
    for path in ("/memory", "/readyz", "/metrics"):
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
            head, end, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
        length = len(ask(page, path)[1])
        assert (f"Content-Length: {length}".encode() in head, end, body) == (True, b"\r\n\r\n", b"")


def test_a_taken_port_is_refused_with_its_flag(page: HealthPage) -> None:
    with pytest.raises(OSError, match="--metrics_port"):
        HealthPage().serve("127.0.0.1", page.port)


def test_a_second_server_of_a_machine_takes_another_port(page: HealthPage) -> None:
    second = HealthPage()
    second.serve("127.0.0.1", page.port, 0)
    try:
        assert second.port not in (0, page.port)
        assert ask(second, "/healthz")[0] == 200
    finally:
        second.close()


def test_it_is_served_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    page = HealthPage()
    try:
        page.serve("::1", 0)
    except OSError as exc:
        pytest.skip(f"no IPv6 loopback here: {exc}")
    reply = httpx.get(f"http://[::1]:{page.port}/healthz", trust_env=False)
    page.close()
    assert reply.status_code == 200


async def test_a_model_server_without_its_admin_server_is_alive_and_says_why_not_ready() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        address = served.server.metrics_address
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://{address}/healthz")).status_code == 200
            reply = await client.get(f"http://{address}/readyz")
    assert (reply.status_code, reply.text) == (503, "not joined to an admin server\n")


async def test_a_model_server_that_drains_is_alive_and_not_ready() -> None:
    gate = threading.Semaphore(0)
    async with serving(
        FakeModels(gate=gate), metrics_port=0, sax_cell="", drain_seconds=30
    ) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=40)
        await until(lambda: served.servable().stats().slots_used == 1 or gate.release())
        stopping = asyncio.create_task(served.server.stop())
        async with httpx.AsyncClient(trust_env=False) as client:
            address = served.server.metrics_address
            reply = await client.get(f"http://{address}/readyz")
            alive = await client.get(f"http://{address}/healthz")
        gate.release(10_000)
        await stopping
    assert (reply.status_code, reply.text) == (503, "draining\n")
    assert alive.status_code == 200


async def test_a_model_server_of_no_cell_is_ready_when_its_model_is() -> None:
    async with serving(FakeModels(), metrics_port=0, sax_cell="") as served:
        address = served.server.metrics_address
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://{address}/readyz")).status_code == 200
            assert served.server.servables.loading() == ()
            assert [each.model_id for each in served.server.servables.loaded()] == [MODEL]
    assert NOTHING_CAME_S > 5  # longer than an admin server takes to decide


async def test_a_loop_that_moves_is_no_trouble_and_one_that_stands_is() -> None:
    now = 0.0
    watch = LoopWatch(lambda: now)
    watch.start()
    now = STUCK_S + 1  # nothing has ticked since
    assert "has not moved for 61 s" in watch.trouble()
    await asyncio.sleep(0)  # the loop moves
    assert watch.trouble() == ""
    watch.stop()


LATER = NOTHING_CAME_S + 1


def test_a_server_is_ready_once_it_has_joined_and_loads_nothing() -> None:
    cases: list[tuple[float | None, tuple[str, ...], tuple[str, ...], str]] = [
        (None, (), (), "not joined"),
        (None, (), ("/sax/test/m",), "not joined"),
        (LATER, ("/sax/test/b", "/sax/test/a"), (), "loading /sax/test/a, /sax/test/b"),
        (LATER, ("/sax/test/m",), ("/sax/test/n",), "loading /sax/test/m"),
        (1.0, (), (), "joined just now"),
        (1.0, (), ("/sax/test/m",), ""),
        (LATER, (), (), ""),
        (float("inf"), (), (), ""),
    ]
    for joined_for_s, loading, loaded, reason in cases:
        found = why_not_ready(joined_for_s=joined_for_s, loading=loading, loaded=loaded)
        assert reason in found
        assert bool(reason) == bool(found), (joined_for_s, loading, loaded)
