"""A client's connection: uvicorn's, with limits on how long and how large a request may arrive.

uvicorn itself waits for ever for the first request of a connection, for the rest of a head and for
a body that is answered already, and collects headers without end. `http_gateway.envelope` bounds
the bodies that routes wait for, since it can answer in their formats.

The certificate is read again when its files change. Each handshake looks at them, at most once a
second, and a change makes a new context: connections that are open keep theirs, and files that do
not fit together change nothing. To load them into the context in use could leave it with a new
certificate and the old key.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from http_gateway.access import AccessLine, RequestRecord, new_request_id
from http_gateway.body_writer import BodyWriter
from http_gateway.config import GatewayConfig
from http_gateway.problems import answer
from sax.auth.acl import account_of_host
from sax.errors import InvalidRequest

MAX_HEAD_BYTES = 64 << 10  # request line and headers

_UNWANTED_BODY_S = 5.0  # for the rest of a body that is answered already
_LINGER_S = 1.0  # a refused client may still send: to close at once would reset, and lose the reply
_LINGER_BYTES = 4 << 20

# A machine that loses power or its network says no goodbye. Its connection ends a minute after it
# was last heard of (three of the system's probes without an answer), or after five if it leaves
# what was sent unread or unacknowledged: a reader may pause that long. macOS lacks some of these.
_LOST_PEERS = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 300_000,
}
log = logging.getLogger(__name__)

_LOOK_S = 1.0

Stamp = tuple[tuple[int, int, int], ...]


class _Arrival(Enum):
    IDLE = "before a request"
    HEAD = "within a head"
    BODY = "within a body"
    COMPLETE = "a request is complete"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a gateway, and its connections that have no complete request.

    They are in the order in which they began to wait: the first makes room for a new one.
    """

    config: GatewayConfig
    waiting: dict[BoundedConnection, None] = field(default_factory=dict["BoundedConnection", None])


def connections(config: GatewayConfig) -> Callable[..., BoundedConnection]:
    """Return what uvicorn makes its connections with."""
    return functools.partial(BoundedConnection, Bounds(config))


class BoundedConnection(HttpToolsProtocol):
    """One connection; a late request, or a head that is too large, ends it."""

    def __init__(self, bounds: Bounds, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._config = bounds.config
        self._waiting = bounds.waiting
        self._stage = _Arrival.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._unwanted = False  # the body, since its request is answered already
        self._head_bytes = 0  # that the parser has reported
        self._fed = 0  # bytes that the parser keeps, of a head or of headers after a body
        self._chunk = 0
        self._refused = False
        self._discarded = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self._config.max_connections and not self._make_room():
            most = f"all {self._config.max_connections} connections are in use: try again"
            return self._refuse(503, f"{most}, or start the gateway with more --max_connections")
        _notice_lost_peer(transport)
        self._waiting[self] = None
        self._watch()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest without a request; False if none does."""
        for other in self._waiting:
            del self._waiting[other]
            other.transport.abort()
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return self._discard(data)
        self._chunk = len(data)
        super().data_received(data)
        if self._refused:
            return
        complete = self._stage in (_Arrival.IDLE, _Arrival.COMPLETE)
        self._fed = 0 if complete else self._fed + len(data)
        if self._fed > MAX_HEAD_BYTES:
            return self._refuse_head()
        self._watch()

    # Parser

    def on_message_begin(self) -> None:
        self._stage, self._head_bytes = _Arrival.HEAD, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # ": " and the end of the line
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stage = _Arrival.BODY
        super().on_headers_complete()
        # Its task has not run yet.
        BodyWriter(self.cycle).put_into(cast("Scope", self.scope))

    def on_body(self, body: bytes) -> None:
        self._fed = -self._chunk
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = _Arrival.IDLE if self._unwanted else _Arrival.COMPLETE
        self._unwanted = False
        self._cancel_timer()
        self._fed = -self._chunk  # nothing in this chunk counts for the next head
        self._waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        self._waiting[self] = None
        if self._stage is _Arrival.COMPLETE:
            self._stage = _Arrival.IDLE  # uvicorn's own timer closes a connection that stays idle
        elif self._stage is _Arrival.BODY:
            self._unwanted = True
            self._start_timer(_UNWANTED_BODY_S)

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            return self._refuse_head()
        self._refuse(400, "this is no HTTP request: send HTTP/1.1, or HTTPS with --tls_cert")

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # ends the parser; see send_400_response

    # Time

    def _watch(self) -> None:
        """Run a timer while a head is awaited; one that runs for it already goes on."""
        if self._stage in (_Arrival.IDLE, _Arrival.HEAD):
            if self._timer is None:
                self._start_timer(self._config.header_timeout_s)
        elif not self._unwanted:
            self._cancel_timer()

    def _start_timer(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, self._late)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._stage is _Arrival.HEAD:
            limit_s = self._config.header_timeout_s
            self._refuse(408, f"the headers did not arrive within {limit_s:g} s: send them at once")
        else:
            self.transport.close()

    # Refusals

    def _refuse_head(self) -> None:
        self._refuse(431, f"request line and headers exceed {MAX_HEAD_BYTES} bytes: send less")

    def _refuse(self, status: int, text: str) -> None:
        """Answer a request that no route will see, and close."""
        self._refused = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self._waiting.pop(self, None)
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline:
                return self.transport.close()  # another reply is under way: there is no room
            cycle.disconnected = True  # for its route, which waits for the body
            cycle.message_event.set()
        self._answer(status, text)
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _answer(self, status: int, text: str) -> None:
        host = self.client[0] if self.client else ""
        record = RequestRecord(new_request_id(), "-", key=account_of_host(host))
        reply = self._reply(status, text, record.request_id)
        self.transport.write(reply)
        if self._config.access_log == "on":
            AccessLine(record, "other", status, 0.0, self._head_bytes, len(reply)).tell()

    def _reply(self, status: int, text: str, request_id: str) -> bytes:
        path = getattr(self, "url", b"").decode("ascii", "replace")
        error = HTTPException(status, text)
        reply = answer(path, error, self._config.saxml_generation, request_id)
        own = ((b"x-request-id", request_id.encode()), (b"connection", b"close"))
        headers = [*reply.raw_headers, *own]
        lines = (name + b": " + value + b"\r\n" for name, value in headers)
        return STATUS_LINE[status] + b"".join(lines) + b"\r\n" + bytes(reply.body)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > _LINGER_BYTES:
            self.transport.abort()


def _notice_lost_peer(transport: asyncio.Transport) -> None:
    """Have the system end the connection of a machine that is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LOST_PEERS.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Certificate:
    def __init__(self, cert: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidRequest if the files cannot be read or do not fit together."""
        self._cert = cert
        self._key = key
        self._clock = clock
        self._looked_s = clock()
        self._stamp = self._look()
        try:
            self._current = self._load()
        except (OSError, ssl.SSLError) as exc:
            raise InvalidRequest(self._wrong(exc), param="tls_cert") from exc

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with: each handshake continues with the newest one."""
        self._current.sni_callback = self._choose
        return self._current

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Called by OpenSSL in each handshake, also without a name."""
        connection.context = self.newest()

    def newest(self) -> ssl.SSLContext:
        """Return the context of the files as they were at the last look."""
        self._refresh()
        return self._current

    def _refresh(self) -> None:
        if self._clock() - self._looked_s < _LOOK_S:
            return
        self._looked_s = self._clock()
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._current = self._load()
        except (OSError, ssl.SSLError) as exc:
            log.error("keeping the previous certificate: %s", self._wrong(exc))
        else:
            log.info("reloaded the certificate %s", self._cert)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._cert, self._key, password=_no_password)
        return context

    def _look(self) -> Stamp | None:
        """Return what tells one version of the files from another; None while one is missing."""
        try:
            found = [os.stat(path) for path in (self._cert, self._key)]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)

    def _wrong(self, exc: Exception) -> str:
        return (
            f"--tls_cert {self._cert} and --tls_key {self._key} cannot be used ({exc}): give a "
            "certificate chain and its private key, in PEM files, without a password"
        )


def _no_password() -> str:
    """Keep OpenSSL from asking at the terminal for the password of an encrypted key."""
    return ""
