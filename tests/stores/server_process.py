"""A storage server as a child process: started, waited for, and killed by its own pid.

What it logs goes to a file, so that nothing of it mixes with pytest's output, and the file is told
when the server does not come up. Knows nothing of any one server.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

_START_S = 60.0


class DidNotStart(Exception):
    """The server ended, or does not answer; the text has its log."""


@contextmanager
def running(
    command: Sequence[str], folder: Path, up: Callable[[str], bool], env: Mapping[str, str]
) -> Iterator[str]:
    """The log of a server that answers, as `up` finds from the log. Raises DidNotStart."""
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**env})
    try:
        _wait_until_up(process, log, up)
        yield log.read_text(errors="replace")
    finally:
        process.kill()
        process.wait()


def answers(url: str, *statuses: int) -> bool:
    """Whether a GET is answered, with one of the statuses if any are given."""
    try:
        status = httpx.get(url, timeout=5.0).status_code
    except httpx.TransportError:
        return False
    return not statuses or status in statuses


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, up: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not up(log.read_text(errors="replace")):
        if process.poll() is not None:
            raise DidNotStart(f"{process.args} ended with {process.returncode}: {_tail(log)}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"{process.args} does not answer: {_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
