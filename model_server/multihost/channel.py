"""ZeroMQ sockets between the hosts of a replica.

The primary publishes commands to every host (PUB) and collects their answers (PULL); before that,
hosts meet at one port (ROUTER). ZeroMQ, because a step message costs 0.05 to 0.2 ms over it and
milliseconds as a broadcast over the devices. A command has two frames, its number and its body; a
heartbeat has no body.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import zmq

from model_server.multihost.commands import Answer, Command, decode_answer, decode_command, encode
from sax.errors import Unavailable

_NUMBER = 8  # bytes
_LOOK_MS = 500
Context = zmq.Context[zmq.Socket[bytes]]


def open_context() -> Context:
    """Open a context whose sockets reach hosts over IPv4 and IPv6."""
    context: Context = zmq.Context()
    context.setsockopt(zmq.IPV6, 1)
    return context


def endpoint(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CommandPublisher:
    """Publishes the primary's commands. Any thread may publish."""

    def __init__(self, context: Context, host: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # no limit: PUB drops at its high-water mark
        self._socket.setsockopt(zmq.LINGER, 1000)
        self.port = self._socket.bind_to_random_port("tcp://" + endpoint(host, "").rstrip(":"))
        self._lock = threading.Lock()
        self._closed = False
        self.published = 0  # number of the last command

    def publish(self, command: Command) -> int:
        """Send to every host; returns the command's number."""
        body = encode(command)
        with self._lock:
            self.published += 1
            self._socket.send_multipart([self.published.to_bytes(_NUMBER, "big"), body], copy=False)
            return self.published

    def beat(self) -> None:
        with self._lock:
            if not self._closed:
                self._socket.send(self.published.to_bytes(_NUMBER, "big"))

    def close(self) -> None:
        """Flush, then close. Idempotent."""
        with self._lock:
            self._socket.close()
            self._closed = True


class AnswerCollector:
    """Receives the secondaries' answers on the primary. One thread."""

    def __init__(self, context: Context, host: str) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.port = self.socket.bind_to_random_port("tcp://" + endpoint(host, "").rstrip(":"))

    def take(self) -> Answer | None:
        """Return the next answer if one has arrived."""
        try:
            return decode_answer(self.socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None


class CommandReceiver:
    """Receives the primary's commands on a secondary. One thread."""

    def __init__(self, context: Context, host: str, port: int) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"tcp://{endpoint(host, port)}")
        self._number = 0  # of the last command

    def receive(self, heard: Callable[[], None]) -> tuple[int, Command] | None:
        """Return the next command, or None if none arrives for a while.

        `heard` is called for every message, heartbeats included. Raises Unavailable when a command
        was lost: this host cannot go on.
        """
        while True:
            if not self._socket.poll(_LOOK_MS):
                return None
            frames = self._socket.recv_multipart()
            heard()
            number = int.from_bytes(frames[0], "big")
            if len(frames) == 1:
                # A heartbeat carries the number of the last command published before it.
                self._check(number, self._number)
                continue
            self._check(number, self._number + 1)
            self._number = number
            return number, decode_command(frames[1])

    def close(self) -> None:
        self._socket.close()

    def _check(self, number: int, expected: int) -> None:
        if number != expected:
            raise Unavailable(
                f"the primary's commands from {self._number + 1} on were lost (it is at {number}); "
                "this host cannot go on"
            )


class AnswerSender:
    """Sends a secondary's answers. Any thread may send."""

    def __init__(self, host: str, port: int) -> None:
        self._context = open_context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.connect(f"tcp://{endpoint(host, port)}")
        self._lock = threading.Lock()

    def send(self, answer: Answer) -> None:
        """Send without blocking."""
        with self._lock:
            if not self._context.closed:
                self._socket.send(encode(answer))

    def close(self) -> None:
        """Return once pending answers have left this process, or after the linger time."""
        with self._lock:
            if not self._context.closed:
                self._context.destroy()
