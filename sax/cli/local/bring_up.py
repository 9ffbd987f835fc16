"""Runs a local cell from start to drain, and shows its progress until it is up.

Adds to `Supervisor`: signals, readiness checks, and the caller's work once the cell is up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sax.cli.commands.wait import until_ready
from sax.cli.local.cell_plan import ADMIN, GATEWAY, CellPlan, check_ports
from sax.cli.local.child import Child
from sax.cli.local.supervisor import Supervisor, listens
from sax.cli.publication import Publication
from sax.cli.stages import ProgressStage
from sax.command import say
from sax.errors import InvalidRequest, ModelExists
from sax.format import quoted

if TYPE_CHECKING:
    from sax.cli.display import Display
    from sax.client import AsyncClient

_LOOK_S = 0.1
_ANSWER_S = 2.0  # for a page of a server that listens

Work = Callable[["Voice"], Awaitable[None]]


class Voice:
    """Prints lines through the progress bars while they are open, plainly otherwise."""

    def __init__(self) -> None:
        self._display: Display | None = None

    def __call__(self, text: str) -> None:
        if self._display is None:
            say(text)
        else:
            self._display.note(text)

    @asynccontextmanager
    async def display(self) -> AsyncGenerator[Display]:
        from sax.cli.display import open_display

        with open_display() as display:
            self._display = display
            try:
                yield display
            finally:
                self._display = None


async def run_cell(plan: CellPlan, work: Work) -> None:
    """Serve a cell until SIGINT or SIGTERM, then drain it.

    `work` runs once the cell is up; an error in it ends the cell, its return does not.
    """
    check_ports(plan.ports)
    make_folder(plan)
    voice = Voice()
    supervisor = Supervisor(plan.children, voice)
    stopping = _stop_signals(supervisor)
    supervisor.start()
    try:
        tasks = (
            asyncio.create_task(stopping.wait()),
            asyncio.create_task(supervisor.failed()),
            asyncio.create_task(_work_then_idle(plan, supervisor, voice, work)),
        )
        await _first_of(*tasks)
    finally:
        await supervisor.drain()


def make_folder(plan: CellPlan) -> None:
    """Make the folder of state and logs. Raises InvalidRequest if it cannot be used."""
    try:
        plan.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _useless(plan.folder, f"cannot be made: {error.strerror}") from None
    if not os.access(plan.logs, os.W_OK):
        raise _useless(plan.folder, "cannot be written to")


def _useless(folder: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the folder {quoted(str(folder))} {why}; name another with --dir", param="--dir"
    )


def _stop_signals(supervisor: Supervisor) -> asyncio.Event:
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():  # second signal: do not wait for streams to finish
            supervisor.kill()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stopping


async def _first_of(*tasks: asyncio.Task[object]) -> None:
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


async def _work_then_idle(plan: CellPlan, supervisor: Supervisor, voice: Voice, work: Work) -> None:
    async with voice.display() as display:
        await _until_up(plan, supervisor, display)
    await work(voice)
    await asyncio.Event().wait()


async def _until_up(plan: CellPlan, supervisor: Supervisor, display: Display) -> None:
    """Look at pages of the servers: a client of theirs takes as long to import as a server does
    to start."""
    # Only a gang's primary joins, once all its hosts have met. The proxy server of islands listens
    # when all of them are up.
    checks = {
        ADMIN: partial(_admin_leads, plan),
        **{child.name: partial(listens, plan.pathways_port) for child in _pathways(plan)},
        **{
            server.name: partial(_model_server_joined, plan, server.port)
            for server in plan.model_servers
        },
        GATEWAY: partial(_gateway_answers, plan),
    }
    pending = set(checks)
    while pending:
        for name in sorted(pending):
            if await checks[name]():
                supervisor.answered(name)
                pending.discard(name)
        display.show(
            [ProgressStage(name, "starting" if name in pending else "ready") for name in checks]
        )
        await asyncio.sleep(_LOOK_S)


async def _admin_leads(plan: CellPlan) -> bool:
    return bool((await _status(plan)).get("leading"))


async def _model_server_joined(plan: CellPlan, port: int) -> bool:
    servers = (await _status(plan, f"?servers=:{port}")).get("servers", ())
    return any(server["address"].endswith(f":{port}") for server in servers)


async def _status(plan: CellPlan, query: str = "") -> dict[str, Any]:
    """Return what the admin server's status page says; {}: nothing yet."""
    page = await _page(f"http://127.0.0.1:{plan.status_port}/status.json{query}")
    return {} if page is None else json.loads(page)


def _pathways(plan: CellPlan) -> tuple[Child, ...]:
    return plan.island_plan.children if plan.island_plan else ()


async def _gateway_answers(plan: CellPlan) -> bool:
    return await _page(f"{plan.gateway_url}/healthz") is not None


async def _page(url: str) -> bytes | None:
    """Return a page of a server on this machine; None: it gives none, or not yet."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            head, _, body = (await _reply(url)).partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200 "):
            return body
    return None


async def _reply(url: str) -> bytes:
    """Ask with what Python has imported already: `urllib.request` takes some 40 ms. Raises OSError
    and TimeoutError."""
    at = urlsplit(url)
    tls = _unverified() if at.scheme == "https" else None
    reader, writer = await asyncio.open_connection(at.hostname, at.port, ssl=tls)
    try:
        path = f"{at.path}?{at.query}" if at.query else at.path
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        return await reader.read()
    finally:
        writer.close()


def _unverified() -> ssl.SSLContext:
    """A gateway's certificate may be for the name that others call it by."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def publish_and_wait(client: AsyncClient, wanted: Publication, voice: Voice) -> None:
    """Publish or update a model and wait until ready. Raises LoadFailed with the reason."""
    await ensure_published(client, wanted)
    async with voice.display() as display:
        await until_ready(client, wanted.model_id, display)


async def ensure_published(client: AsyncClient, wanted: Publication) -> None:
    """Publish a model, or update it if an earlier run of this cell published it."""
    try:
        await _publish(client, wanted)
    except ModelExists:
        earlier = (await client.list(wanted.model_id)).spec
        if earlier.model_path != wanted.model_path:  # update cannot change the model path
            await client.unpublish(wanted.model_id)
            await _publish(client, wanted)
            return
        await client.update(
            wanted.model_id,
            checkpoint=wanted.checkpoint,
            replicas=wanted.replicas,
            overrides=wanted.overrides,
        )


async def _publish(client: AsyncClient, wanted: Publication) -> None:
    await client.publish(
        wanted.model_id,
        wanted.model_path,
        wanted.checkpoint,
        wanted.replicas,
        wanted.overrides,
    )
