"""The server's end of a process with limits of time and memory that answers its requests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from model_server.sharing.confined.pipe import LENGTH

T = TypeVar("T")

WALL_S = 20.0  # for one answer, on a machine too busy to give the process its processor time
_INHERITED = ("LD_LIBRARY_PATH", "LANG", "TZ")  # and LC_*, PYTHON*; no secrets
_ROOT = str(Path(__file__).parents[3])


class ProcessEnded(Exception):
    """The process exceeded a limit or died; the text ends a sentence on what it worked on."""


class ProcessStarved(Exception):
    """The process did not answer in time, although it used less processor time than it may: the
    machine is too busy, and the question is not to blame."""


class ConfinedProcess:
    """Starts with the first request, and again after it has ended. Not thread-safe."""

    def __init__(
        self,
        worker: str,
        seconds: float,
        niceness: int,
        *,
        doing: str,
        most: int,
        wall_s: float | None = None,
    ) -> None:
        """worker: module to run. seconds: processor time for one request. doing: a verb phrase for
        messages, "renders it". most: bytes of an answer. wall_s: None: `WALL_S`.
        """
        self._worker = worker
        self._doing = doing
        self._most = most
        self._wall_s = WALL_S if wall_s is None else wall_s
        self._seconds = seconds
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1  # file descriptors of the running process
        self._deadline_s = 0.0

    def start(self) -> None:
        """Start the process if it is not running. Raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._worker, str(self._seconds), str(self._niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
        )
        self._requests, self._answers = (
            _descriptor(stream) for stream in (self._process.stdin, self._process.stdout)
        )

    def exchange(self, message: bytes, decode: Callable[[bytes], T]) -> T:
        """Send a framed request and return its answer. Raises ProcessEnded, ProcessStarved,
        OSError."""
        self.start()
        self._deadline_s = time.monotonic() + self._wall_s
        try:
            self._send(message)
            length = int.from_bytes(self._receive(LENGTH), "little")
            if length > self._most:
                raise ProcessEnded(f"writes more than {self._most} bytes")
            return decode(self._receive(length))
        except TimeoutError:
            self.stop()
            raise ProcessStarved(
                f"this machine is too busy: the process that {self._doing} got no answer ready "
                f"within {self._wall_s:g} s"
            ) from None
        except (EOFError, BrokenPipeError):
            raise ProcessEnded(self._how_it_ended()) from None
        except BaseException:
            self.stop()  # what it would still write belongs to this request
            raise

    def stop(self) -> None:
        """End the process at once; `answer` starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()

    def _how_it_ended(self) -> str:
        process = self._process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(WALL_S)
        status = process.returncode
        self.stop()
        if status == -signal.SIGPROF:
            return f"ran for more than {self._seconds:g} s of processor time and was stopped"
        return f"ended the process that {self._doing} (status {status})"

    def _send(self, message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BlockingIOError:
                self._wait(self._requests, select.POLLOUT)

    def _receive(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            self._wait(self._answers, select.POLLIN)
            piece = os.read(self._answers, min(count, 1 << 20))
            if not piece:
                raise EOFError
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def _wait(self, descriptor: int, event: int) -> None:
        """Wait until the descriptor can be used. Raises TimeoutError."""
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, self._deadline_s - time.monotonic()) * 1000):
            raise TimeoutError


def _descriptor(stream: IO[bytes] | None) -> int:
    """Return the descriptor of a pipe's end, which from now on never blocks."""
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(("LC_", "PYTHON"))
    }
    # The same code as here, however this process found it.
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, *sys.path]))}
