"""A cell on this machine for one command: it starts with it and ends with it, however that ends."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sax.cli.display import open_display
from sax.cli.stages import ProgressStage
from sax.client import AsyncClient
from sax.command import say
from sax.config import (
    ADMIN_PORT,
    ADMIN_STATUS_PORT,
    GATEWAY_PORT,
    GROUP_PORT,
    MODEL_METRICS_PORT,
    MODEL_PORT,
)
from sax.errors import SaxError, Unavailable

_PORTS = {
    "--admin-port": ADMIN_PORT,
    "--port": GATEWAY_PORT,
    "--model-port": MODEL_PORT,
    "--status-port": ADMIN_STATUS_PORT,
    "--metrics-port": MODEL_METRICS_PORT,
    "--group-port": GROUP_PORT,
}
_LOOK_S = 0.2
_DRAIN_S = 45.0
_LOG_LINES = 8


@contextmanager
def own_cell() -> Generator[str]:
    """Run a cell and give the address of its admin server. Raises Unavailable.

    It uses the usual ports where they are free, and keeps nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="sax-run-"))
    ports = _free_ports()
    flags = [f"{flag}={port}" for flag, port in ports.items()]
    command = (sys.executable, "-m", "sax.cli.local.leash", "sax.cli", "up", f"--dir={folder}")
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            (*command, *flags),
            stdin=subprocess.PIPE,  # its end is the end of this process
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for whoever asks, and not for the cell
        )
    address = f"127.0.0.1:{ports['--admin-port']}"
    try:
        asyncio.run(_until_joined(up, address, folder / "up.log"))
        yield address
    finally:
        _end(up)
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports() -> dict[str, int]:
    """Return the usual ports, and others for those that are taken."""
    held: dict[str, socket.socket] = {}
    try:
        for flag, usual in _PORTS.items():
            held[flag] = _bound(usual)
        return {flag: each.getsockname()[1] for flag, each in held.items()}
    finally:
        for each in held.values():
            each.close()


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
    except OSError:
        made.bind(("127.0.0.1", 0))
    return made


async def _until_joined(up: subprocess.Popen[bytes], address: str, log: Path) -> None:
    async with AsyncClient(address) as client:
        with open_display() as display:
            while True:
                display.show([ProgressStage("a cell on this machine", "starting")])
                if up.poll() is not None:
                    raise Unavailable(f"the cell ended at once: {_tail(log)}")
                with suppress(SaxError):
                    if await client.servers(timeout_s=1.0):
                        display.show([ProgressStage("a cell on this machine", "ready")])
                        return
                await asyncio.sleep(_LOOK_S)


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:])


def _end(up: subprocess.Popen[bytes]) -> None:
    """Let the cell drain; end it at once on Ctrl-C, or if it does not."""
    assert up.stdin is not None
    with closing(up.stdin):
        pass
    try:
        if up.poll() is None:
            say("stopping the cell")
        up.wait(_DRAIN_S)
    except BaseException as exc:
        up.kill()  # its processes see that, and end
        up.wait()
        if not isinstance(exc, subprocess.TimeoutExpired | KeyboardInterrupt):
            raise
