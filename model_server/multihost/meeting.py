"""Rendezvous of a replica's hosts: each says hello to the primary until all are present.

The primary listens at one port from the first hello to the end of the process, so a host that comes
late or twice gets an explanation. `model_server.multihost.hello` decides who is turned away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq

from model_server.multihost.channel import Context, endpoint
from model_server.multihost.hello import (
    Found,
    Greeting,
    Hello,
    Probe,
    Refusal,
    Waiting,
    Welcome,
    why_not,
)
from sax.errors import InvalidRequest, Unavailable

logger = logging.getLogger(__name__)

_AGAIN_S = 0.5  # how often a host says hello
_SILENT_S = 2.0  # a waiting host that is silent for this long is gone
_PROBE_S = 3.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Greeting).decode


@dataclass(frozen=True, slots=True)
class _Guest:
    hello: Hello
    route: bytes  # ZeroMQ's id of the connection
    heard_at_s: float


class Reception:
    """The primary's side. One thread."""

    def __init__(
        self,
        context: Context,
        own: Hello,
        names: tuple[str, ...],
        host: str,
        port: int,
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self._own = own
        self._names = names
        self._present: dict[int, _Guest] = {}
        self._welcome: Welcome | None = None
        self._refused: set[str] = set()  # nonces: each refusal is logged once
        try:
            self.socket.bind(f"tcp://{endpoint(host, port)}")
        except zmq.ZMQError as exc:
            context.destroy()
            raise OSError(
                f"cannot listen on {host}:{port} (--group_port) for the other hosts: {exc}; "
                "another primary may be running here"
            ) from exc

    @property
    def complete(self) -> bool:
        return not self._missing()

    @property
    def missing(self) -> str:
        return ", ".join(f"host {each} ({self._names[each]})" for each in self._missing())

    @property
    def machines(self) -> dict[int, str]:
        return {ordinal: guest.hello.machine for ordinal, guest in self._present.items()}

    def _missing(self) -> list[int]:
        now_s = time.monotonic()
        if self._welcome is None:
            self._present = {
                ordinal: guest
                for ordinal, guest in self._present.items()
                if now_s - guest.heard_at_s < _SILENT_S
            }
        return [each for each in range(1, self._own.count) if each not in self._present]

    def answer(self) -> None:
        """Answer one greeting if one has arrived."""
        try:
            route, body = self.socket.recv_multipart(zmq.NOBLOCK)
            greeting = _decode(body)
        except (zmq.Again, ValueError):  # nothing arrived, or not one of our messages
            return
        if isinstance(greeting, Probe):
            self._send(route, Found(self._own.nonce, self._own.name))
        elif isinstance(greeting, Hello):
            self._meet(route, greeting)

    def welcome(self, welcome: Welcome) -> None:
        self._welcome = welcome
        for guest in self._present.values():
            self._send(guest.route, welcome)

    def _meet(self, route: bytes, host: Hello) -> None:
        self._missing()  # drops hosts that went away
        present = {ordinal: guest.hello for ordinal, guest in self._present.items()}
        other = present.get(host.ordinal)
        if self._welcome is not None and other is not None and other.nonce != host.nonce:
            # Restarted before its earlier process was found lost: the replica ends soon.
            self._send(route, Waiting(f"the end of {other.name}, which is host {host.ordinal} now"))
            return
        if (reason := why_not(self._own, host, present)) is not None:
            if host.nonce not in self._refused:
                logger.error("turned away: %s", reason)
            self._refused.add(host.nonce)
            self._send(route, Refusal(reason))
            return
        if host.ordinal not in present:
            logger.info("host %d (%s) has arrived", host.ordinal, host.name)
        self._present[host.ordinal] = _Guest(host, route, time.monotonic())
        self._send(route, self._welcome or Waiting(self.missing))

    def _send(self, route: bytes, greeting: Greeting) -> None:
        self.socket.send_multipart([route, _encode(greeting)])


def say_hello(context: Context, own: Hello, host: str, port: int, deadline_s: float) -> Welcome:
    """Say hello as a secondary until all hosts are present.

    Raises InvalidRequest when turned away, Unavailable at the deadline.
    """
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{endpoint(host, port)}")
        missing = None
        while (left_s := deadline_s - time.monotonic()) > 0:
            socket.send(_encode(own))
            if not socket.poll(round(1000 * min(_AGAIN_S, left_s))):
                continue
            reply = _decode(socket.recv())
            if isinstance(reply, Refusal):
                raise InvalidRequest(f"turned away by the primary: {reply.reason}")
            if isinstance(reply, Welcome):
                return reply
            # `missing` is empty between the last host's arrival and the welcome.
            if isinstance(reply, Waiting) and reply.missing not in ("", missing):
                missing = reply.missing
                logger.info("waiting with the primary for %s", missing)
        if missing is not None:
            raise Unavailable(f"these hosts did not arrive in time: {missing}")
        raise Unavailable(f"the primary at {host}:{port} does not answer: is it running?")


def check_alone(
    context: Context,
    own: Hello,
    host: str,
    port: int,
    answer: Callable[[], None],
) -> None:
    """Check that no other primary answers at the primary's address. Raises InvalidRequest.

    `answer` lets our own reception reply, in case the address is ours.
    """
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{endpoint(host, port)}")
        socket.send(_encode(Probe(own.nonce)))
        deadline_s = time.monotonic() + _PROBE_S
        while time.monotonic() < deadline_s:
            answer()
            if socket.poll(50):
                found = _decode(socket.recv())
                if isinstance(found, Found) and found.nonce != own.nonce:
                    raise InvalidRequest(
                        f"two primaries: this process ({own.name}) is host 0, and so is "
                        f"{found.name} at {host}:{port}: give every host its own "
                        "--host_ordinal",
                        param="--host_ordinal",
                    )
                return
        logger.warning("nothing answers at %s:%d, where the other hosts will connect", host, port)
