from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.resources import messages
from model_server.pathways.resources.calling import ManagerLink
from model_server.pathways.resources.manager import ResourceManager
from model_server.pathways.resources.roster import InstanceType, Roster
from model_server.pathways.resources.status_page import IslandsPage
from tests.model_server.waiting import rounds, until


class Caller:
    """A worker or proxy server as the manager sees it."""

    def __init__(
        self,
        port: int,
        first: messages.Message,
        beat: Callable[[], messages.Message] = messages.Alive,
    ) -> None:
        self.heard: list[messages.Message] = []
        self.link = ManagerLink(
            f"127.0.0.1:{port}", LinkSafety(), lambda: first, self.heard.append, beat
        )
        self._running = asyncio.create_task(self.link.run())

    def last(self, kind: type) -> messages.Message | None:
        found = [each for each in self.heard if isinstance(each, kind)]
        return found[-1] if found else None

    async def end(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await rounds()


class Managed:
    def __init__(self) -> None:
        self.manager = ResourceManager(Roster(InstanceType("cpu", "", 2), 2, lease_s=0.6))
        self.port = 0
        self.callers: list[Caller] = []

    def worker(self, name: str) -> Caller:
        return self._called(messages.Enrol(name, f"{name}:1"))

    def proxy(self, clients: list[messages.ClientLine]) -> Caller:
        return self._called(messages.Watch("proxy"), lambda: messages.Clients(clients))

    def _called(
        self, first: messages.Message, beat: Callable[[], messages.Message] = messages.Alive
    ) -> Caller:
        self.callers.append(Caller(self.port, first, beat))
        return self.callers[-1]


@pytest.fixture
async def managed() -> AsyncIterator[Managed]:
    made = Managed()
    made.port = await made.manager.start("127.0.0.1:0", LinkSafety())
    yield made
    for caller in made.callers:
        await caller.end()
    made.manager.close()
    await rounds()


def islands_up(watcher: Caller) -> list[bool]:
    told = watcher.last(messages.Islands)
    return [line.up for line in told.lines] if isinstance(told, messages.Islands) else []


def every_up(watcher: Caller, since: int) -> list[list[bool]]:
    told = [each for each in watcher.heard[since:] if isinstance(each, messages.Islands)]
    return [[line.up for line in each.lines] for each in told]


async def up(managed: Managed, name: str) -> Caller:
    worker = managed.worker(name)
    await until(lambda: worker.last(messages.IslandPlacement) is not None)
    worker.link.send(messages.Ready(2))
    return worker


async def test_watchers_learn_of_islands_that_come_and_go(managed: Managed) -> None:
    watcher = managed.proxy([])
    worker = await up(managed, "a")
    await until(lambda: islands_up(watcher) == [True, False])
    await worker.end()
    await until(lambda: islands_up(watcher) == [False, False])


async def test_a_worker_that_says_nothing_is_gone(managed: Managed) -> None:
    watcher = managed.proxy([])
    worker = await up(managed, "a")
    await until(lambda: islands_up(watcher) == [True, False])
    worker.link._beat = lambda: (_ for _ in ()).throw(RuntimeError("stopped"))
    await until(lambda: islands_up(watcher) == [False, False])


async def test_a_manager_that_stood_still_loses_no_island(managed: Managed) -> None:
    watcher = managed.proxy([])
    await up(managed, "a")
    await until(lambda: islands_up(watcher) == [True, False])
    time.sleep(1.0)  # as if the process had been stopped: its whole loop stands still  # noqa: ASYNC251
    before = len(watcher.heard)
    await asyncio.sleep(0.5)
    assert all(up_now == [True, False] for up_now in every_up(watcher, before))
    assert managed.manager.roster.island_of("a") == 0


async def test_errors_of_all_processes_are_in_one_place(managed: Managed) -> None:
    worker = await up(managed, "a")
    worker.link.send(messages.Trouble("out of memory"))
    texts = managed.manager.roster.happenings
    await until(lambda: any(each.text == "worker of island 0: out of memory" for each in texts))


async def test_the_page_shows_islands_and_clients_and_pauses_them(managed: Managed) -> None:
    page = IslandsPage(managed.manager)
    port = await page.start("127.0.0.1", 0)
    client = messages.ClientLine(77, "<b>trainer</b>", 2.0, 10, 3, 0, 0, 0, False)
    watcher = managed.proxy([client])
    await until(lambda: bool(managed.manager.clients))
    assert (await fetched(port, "GET /healthz")).startswith("HTTP/1.1 503")
    for name in ("a", "b"):
        await up(managed, name)
    await until(lambda: islands_up(watcher) == [True, True])
    assert (await fetched(port, "GET /healthz")).endswith("ok\n")
    shown = await fetched(port, "GET /")
    assert "&lt;b&gt;trainer&lt;/b&gt;" in shown
    assert "a:1" in shown
    assert '"session": "77"' in await fetched(port, "GET /status.json")
    assert "paused" in await fetched(port, "POST /clients/77/pause")
    await until(lambda: watcher.last(messages.Pause) == messages.Pause(77, True))
    assert "resumed" in await fetched(port, "POST /clients/77/resume")
    for line, status in (
        ("POST /clients/78/pause", "404"),
        ("POST /clients/77/stop", "404"),
        ("GET /nothing", "404"),
        ("PUT /", "405"),
    ):
        assert (await fetched(port, line)).startswith(f"HTTP/1.1 {status}")
    page.close()


async def fetched(port: int, line: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{line} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    async with asyncio.timeout(60):
        reply = await reader.read()
    writer.close()
    return reply.decode()


async def test_what_is_not_http_ends_quietly(managed: Managed) -> None:
    page = IslandsPage(managed.manager)
    port = await page.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\0\r\n\r\n")
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    page.close()


async def test_callers_connect_again_when_the_manager_returns(managed: Managed) -> None:
    watcher = managed.proxy([])
    worker = await up(managed, "a")
    await until(lambda: islands_up(watcher) == [True, False])
    before, known = len(worker.heard), len(watcher.heard)
    managed.manager.close()
    await asyncio.sleep(0.05)
    again = ResourceManager(Roster(InstanceType("cpu", "", 2), 2, lease_s=0.6))
    await again.start(f"127.0.0.1:{managed.port}", LinkSafety())
    await until(lambda: len(worker.heard) > before)
    assert again.roster.island_of("a") == 0
    worker.link.send(messages.Ready(2))
    await until(lambda: len(every_up(watcher, known)) > 1)
    # Nothing is said of an island before its worker had the time to come back.
    assert every_up(watcher, known) == [[], [True], [True, False]][: len(every_up(watcher, known))]
    again.close()
