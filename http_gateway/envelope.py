"""Middleware for every request: request id, body size and time limits, last-resort 500, metrics
and access line.

Pure ASGI, outermost around the router.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.access import AccessLine, RequestRecord, RequestSpan, is_polled, new_request_id
from http_gateway.body_writer import BodyWriter
from http_gateway.config import GatewayConfig
from http_gateway.metrics import GatewayMetrics
from http_gateway.problems import answer
from sax import tracing
from sax.errors import Internal, InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import SOUND_BYTES
from sax.tracing import NO_TRACER, TraceContext, Tracer, Value

log = logging.getLogger(__name__)

_ID_LENGTH = 128
_NO_ANSWER = 499
_FORM_BYTES = 64 << 10  # of an upload beside its file
_SOUNDS = (RequestRoute.TRANSCRIPTIONS, RequestRoute.TRANSLATIONS)
_RATE = 32 << 10  # bytes of a body that earn it a further second


class RequestEnvelope:
    """ASGI middleware; sets `request_id` and `arrived` in the request's state, and its record."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._config = config
        self._metrics = metrics
        self._tells = config.access_log == "on"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        record = RequestRecord(_request_id(headers), scope["method"])
        record.enter()
        self._trace(record, headers, scope["path"])
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"], state["arrived"] = record.request_id, record.arrived_s
        reply = _RecordingSend(send, record)
        body = _BoundedBody(receive, headers, _limit_of(scope, self._config))
        self._metrics.in_flight.inc()
        try:
            await self._app(scope, body, reply)
        except ClientDisconnect:
            record.ending = "gone"  # before its request was complete: nobody waits for an answer
        except Exception as error:
            await self._rescue(scope, receive, reply, error)
        finally:
            self._metrics.in_flight.dec()
            self._end(scope, record, reply, body.size)

    def _trace(self, record: RequestRecord, headers: Headers, path: str) -> None:
        """Begin the request's span; without traces of our own, pass on the client's."""
        parent = TraceContext.parse(headers.get(tracing.TRACEPARENT, ""))
        wanted = parent is not None or not is_polled(path)
        context = self._tracer.start(parent) if wanted else None
        if context is not None and context.sampled:
            record.span = RequestSpan(self._tracer, context, parent)
        above = context or parent
        tracing.enter("" if above is None else str(above))

    async def _rescue(
        self, scope: Scope, receive: Receive, reply: _RecordingSend, error: Exception
    ) -> None:
        """Answer an unexpected error with 500; once a reply has begun, re-raise to close it.

        Only what a client sent can be nested deeper than Python follows: that is its error.
        """
        if reply.status != _NO_ANSWER:
            raise error
        record = RequestRecord.current()
        told: SaxError = Internal(record.internal_error)
        if isinstance(error, RecursionError):
            log.info("request %s is refused: %s", record.request_id, error)
            told = InvalidRequest("the body is nested too deeply: send one with fewer levels")
        else:
            log.error("request %s failed", record.request_id, exc_info=error)
        response = answer(scope["path"], told, self._config.saxml_generation)
        await response(scope, receive, reply)

    def _end(
        self, scope: Scope, record: RequestRecord, reply: _RecordingSend, bytes_in: int
    ) -> None:
        route, seconds = route_name(scope), time.perf_counter() - record.arrived_s
        self._metrics.answered(route, record.model, reply.status, seconds)
        if record.span is not None:
            told: dict[str, Value] = {
                tracing.REQUEST_ID: record.request_id,
                tracing.REQUEST_MODEL: record.model,
                "sax.stream.ended": record.ending,
            }
            record.span.end(record.method, route, reply.status, told)
        if self._tells:
            size = reply.size + (writer.size if (writer := BodyWriter.of(scope)) else 0)
            AccessLine(record, route, reply.status, seconds, bytes_in, size).tell()


def route_name(scope: Scope) -> str:
    """Return the route's template, to bound metric label values; "other" if none matched."""
    return getattr(scope.get("route"), "path", "other")


class _BodyLimit(NamedTuple):
    """Bounds of a body: its size and the time it takes to come."""

    bytes: int
    seconds: float
    remedy: str


def _limit_of(scope: Scope, config: GatewayConfig) -> _BodyLimit:
    seconds, path = config.body_timeout_s, scope["path"] if scope["method"] == "POST" else ""
    if path in _SOUNDS:
        return _BodyLimit(SOUND_BYTES + _FORM_BYTES, seconds, "send a shorter sound, or an MP3")
    flag, form = "max_body_bytes", 0
    if path == RequestRoute.FILES:
        flag, form = "max_file_bytes", _FORM_BYTES
    remedy = f"send less, or start the gateway with a larger --{flag}"
    return _BodyLimit(getattr(config, flag) + form, seconds, remedy)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= _ID_LENGTH and given.isascii() and given.isprintable():
        return given
    return new_request_id()


class _RecordingSend:
    """`send` wrapper that adds what headers tell of the request, and records status and size."""

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send = send
        self._record = record
        self.status = _NO_ANSWER
        self.size = 0  # bytes of the body

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._told()]}
        else:
            self.size += len(message.get("body", b""))
        await self._send(message)

    def _told(self) -> list[tuple[bytes, bytes]]:
        """Return the request's id, how long it waited if a token has come by now, and if the model
        calls tools in sax's own form."""
        told = [(b"x-request-id", self._record.request_id.encode())]
        if self._record.generic_tools:
            told.append((b"x-sax-tools", b"generic"))
        if self._record.queue_s is not None:
            told.append((b"x-sax-queue-seconds", f"{self._record.queue_s:.4f}".encode()))
        return told


class _BoundedBody:
    """`receive` wrapper that refuses a body that is too large, announced or not, or too slow."""

    def __init__(self, receive: Receive, headers: Headers, limit: _BodyLimit) -> None:
        self._receive = receive
        self._limit, self._limit_s, self._remedy = limit
        announced = headers.get("content-length", "")
        self._announced = int(announced) if announced.isascii() and announced.isdigit() else 0
        self.size = 0  # bytes that were read
        self._refused = False
        self._began_s: float | None = None
        self._complete = False

    async def __call__(self) -> Message:
        if self._announced > self._limit:
            self._announced = 0  # refuse once; later calls wait for the disconnect
            self._complete = True
            raise self._too_large()
        message = await (self._receive() if self._complete else self._more())
        self.size += len(message.get("body", b""))
        if self.size > self._limit and not self._refused:
            self._refused = True  # refuse once; later calls wait for the disconnect
            self._complete = True
            raise self._too_large()
        return message

    async def _more(self) -> Message:
        """Wait for more of the body until the deadline. Raises HTTPException."""
        if self._began_s is None:
            self._began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._began_s + self._limit_s + self.size / _RATE):
                message = await self._receive()
        except TimeoutError as exc:
            self._complete = True
            raise HTTPException(
                408,
                f"the body came too slowly: {self.size} bytes in {self._limit_s:g} s and a second "
                f"for each {_RATE} bytes; send it faster, or start the gateway with a larger "
                "--body_timeout_s",
            ) from exc
        self._complete = not message.get("more_body", False)
        return message

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is larger than {self._limit} bytes: {self._remedy}")
