"""The sockets between the hosts of a replica, and nothing else that is one.

The primary publishes commands to all (PUB) and collects what they answer (PULL); before that, hosts
meet at one port (ROUTER). ZeroMQ, because a step message costs it 0.05 to 0.2 ms where a broadcast
over the devices costs milliseconds. Frames of a command: its number, its body; a beat has no body.
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
    """For sockets that reach hosts by either kind of address."""
    context: Context = zmq.Context()
    context.setsockopt(zmq.IPV6, 1)
    return context


def endpoint(host: str, port: int | str) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CommandPublisher:
    """The primary's end. Any thread may publish."""

    def __init__(self, context: Context, host: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # no command is ever dropped for want of room
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
        """Tell every host that the primary lives."""
        with self._lock:
            if not self._closed:
                self._socket.send(self.published.to_bytes(_NUMBER, "big"))

    def close(self) -> None:
        """Send what is on its way, then let go. Idempotent."""
        with self._lock:
            self._socket.close()
            self._closed = True


class AnswerCollector:
    """The primary's other end. One thread."""

    def __init__(self, context: Context, host: str) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.port = self.socket.bind_to_random_port("tcp://" + endpoint(host, "").rstrip(":"))

    def take(self) -> Answer | None:
        """The next answer, if one is there."""
        try:
            return decode_answer(self.socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None


class CommandReceiver:
    """A secondary's end. One thread."""

    def __init__(self, context: Context, host: str, port: int) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"tcp://{endpoint(host, port)}")
        self._number = 0  # of the last command

    def receive(self, heard: Callable[[], None]) -> tuple[int, Command] | None:
        """The next command, None when none comes for a while; `heard` is called for every message.

        Raises Unavailable when one was lost on the way: this host cannot go on.
        """
        while True:
            if not self._socket.poll(_LOOK_MS):
                return None
            frames = self._socket.recv_multipart()
            heard()
            number = int.from_bytes(frames[0], "big")
            if len(frames) == 1:
                # A beat tells what was published before it, on the same connection.
                self._check(number, self._number)
                continue
            self._check(number, self._number + 1)
            self._number = number
            return number, decode_command(frames[1])

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def _check(self, number: int, expected: int) -> None:
        if number != expected:
            raise Unavailable(
                f"of the primary's commands the ones from {self._number + 1} on are lost (it is at "
                f"{number}), so this host cannot go on"
            )


class AnswerSender:
    """A secondary's other end. Any thread may send."""

    def __init__(self, host: str, port: int) -> None:
        self._context = open_context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.connect(f"tcp://{endpoint(host, port)}")
        self._lock = threading.Lock()

    def send(self, answer: Answer) -> None:
        """Send; never waits."""
        with self._lock:
            if not self._context.closed:
                self._socket.send(encode(answer))

    def close(self) -> None:
        """Return once what is on its way has left this process, or nobody takes it."""
        with self._lock:
            if not self._context.closed:
                self._context.destroy()
