"""The record of one HTTP request, its span, and its line in the log."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from sax import tracing
from sax.errors import Cancelled, SaxError, wire_name
from sax.flags.last_lines import LastLines
from sax.tracing import Span, SpanKind, TraceContext, Tracer, Value
from sax.types import GenerateRequest, TokenChunk


class RequestSpan:
    """Begun when a request arrives, recorded when its reply is complete."""

    __slots__ = ("_began_ns", "_parent", "_tracer", "context")

    def __init__(self, tracer: Tracer, context: TraceContext, parent: TraceContext | None) -> None:
        self._tracer = tracer
        self._parent = parent
        self._began_ns = time.time_ns()
        self.context = context

    def call(self, request: GenerateRequest) -> CallSpan:
        """Return the span of a call to the cell, which begins now."""
        return CallSpan(self._tracer, self.context, request)

    def tool(self, name: str, server: str) -> Callable[[str], None]:
        """Begin the span of a call of a tool; call the result with what went wrong, or ""."""
        began_ns = time.time_ns()

        def end(error: str) -> None:
            span = Span(
                name=f"execute_tool {name}",
                context=self.context.child(),
                parent=self.context,
                kind=SpanKind.CLIENT,
                began_ns=began_ns,
                ended_ns=time.time_ns(),
                attributes={
                    tracing.OPERATION: "execute_tool",
                    tracing.TOOL_NAME: name,
                    tracing.MCP_SERVER: server,
                },
                error=error,
            )
            self._tracer.record((span,))

        return end

    def end(self, method: str, route: str, status: int, more: dict[str, Value]) -> None:
        """Record it. more: further attributes, of which empty ones say nothing."""
        told: dict[str, Value] = {
            tracing.METHOD: method,
            tracing.ROUTE: route,
            tracing.STATUS: status,
        }
        failed = str(status) if status >= 500 else ""
        if failed:
            told[tracing.ERROR_TYPE] = failed
        span = Span(
            name=f"{method} {route}",
            context=self.context,
            parent=self._parent,
            remote_parent=True,
            kind=SpanKind.SERVER,
            began_ns=self._began_ns,
            ended_ns=time.time_ns(),
            attributes=told | {name: value for name, value in more.items() if value != ""},
            error=failed,
        )
        self._tracer.record((span,))


class CallSpan:
    """One answer that the gateway asks a model server for, wherever it comes from."""

    __slots__ = ("_began_ns", "_last", "_parent", "_request", "_tracer", "context")

    def __init__(self, tracer: Tracer, parent: TraceContext, request: GenerateRequest) -> None:
        self._tracer = tracer
        self._parent = parent
        self._request = request
        self._began_ns = time.time_ns()
        self._last: TokenChunk | None = None
        self.context = parent.child()

    @property
    def request(self) -> GenerateRequest:
        """The request, as one of this span."""
        return replace(self._request, traceparent=str(self.context))

    def take(self, chunk: TokenChunk) -> None:
        self._last = chunk

    def end(self, error: BaseException | None = None) -> None:
        """Record it. error: what it ended with, if not with an answer."""
        told, failed = tracing.attributes_of(self._request), ""
        if isinstance(error, SaxError) and not isinstance(error, Cancelled):
            told[tracing.ERROR_TYPE] = failed = wire_name(error)
        if (last := self._last) is not None:
            told[tracing.INPUT_TOKENS] = last.prompt_tokens
            told[tracing.OUTPUT_TOKENS] = last.completion_tokens
            if last.finish_reason:
                told[tracing.FINISH_REASONS] = (last.finish_reason,)
        span = Span(
            name=f"{told[tracing.OPERATION]} {self._request.model_id}",
            context=self.context,
            parent=self._parent,
            kind=SpanKind.CLIENT,
            began_ns=self._began_ns,
            ended_ns=time.time_ns(),
            attributes=told,
            error=failed,
        )
        self._tracer.record((span,))


_current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


@dataclass(slots=True)
class RequestRecord:
    """The facts of one HTTP request, for its access line, its key's limits and metrics.

    Each part of the gateway writes what it learns; nothing is written per token.
    """

    request_id: str = ""
    method: str = ""
    arrived_s: float = field(default_factory=time.perf_counter)
    key: str = ""  # name of its key, or the client's address
    cell_ids: list[str] = field(default_factory=list[str])  # of its answers, at model servers
    model: str = ""  # full name, only of a published model: metrics have it as a label
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    queue_s: float | None = None  # at a model server, of its answer that waited longest
    generic_tools: bool = False  # sax told the model of its tools: its template has no place
    span: RequestSpan | None = None  # None: nobody traces it
    ending: str = ""  # of a stream, or "gone" for a client that did not wait

    @classmethod
    def current(cls) -> RequestRecord:
        """Return the record of the request that this task answers; a new one outside requests."""
        return _current.get() or cls()

    def enter(self) -> None:
        """Make this the current record of this task and the tasks that it starts."""
        _current.set(self)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def internal_error(self) -> str:
        """The text of an error that only the log explains."""
        return f"internal error: see the gateway's log for request {self.request_id}"

    def id_in_cell(self, reply_id: str) -> str:
        """Return the request id for the cell's logs: unique, however often a client repeats its."""
        return f"{self.request_id}/{reply_id}" if self.request_id else reply_id


def new_request_id() -> str:
    return uuid.uuid4().hex


log = logging.getLogger("http_gateway.access")

# Logged only if they fail.
_QUIET = ("/healthz", "/readyz", "/health", "/ping", "/metrics", "/page/{name}")
_POLLED = ("/cell", "/cell/requests", "/cell/keys", "/cell/log")  # by an open page
_PLAIN = re.compile(r'[^\s"=]+')


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One HTTP request as one line of the log. It never holds a prompt, an answer or a key.

    The route is its template, not what the client wrote, and the model is a published one.
    """

    record: RequestRecord
    route: str
    status: int
    total_s: float
    bytes_in: int
    bytes_out: int

    def tell(self) -> None:
        """Log it, unless it is of a probe, a scrape or an open page that went well."""
        if self.status >= 400 or self.route not in (*_QUIET, *_POLLED):
            log.info(self)

    def fields(self) -> dict[str, object]:
        """Return the fields in their order, without those that say nothing."""
        record = self.record
        counted = record.tokens > 0
        fields: dict[str, object] = {
            "method": record.method,
            "route": self.route,
            "status": self.status,
            "model": record.model,
            "key": record.key,
            "prompt_tokens": record.prompt_tokens if counted else None,
            "completion_tokens": record.completion_tokens if counted else None,
            "queue_s": _rounded(record.queue_s),
            "first_token_s": _rounded(record.first_token_s),
            "total_s": round(self.total_s, 4),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "ended": record.ending,
            "request_id": record.request_id,
            "trace_id": f"{record.span.context.trace_id:032x}" if record.span else None,
        }
        return {name: value for name, value in fields.items() if value not in (None, "")}

    def __str__(self) -> str:
        return " ".join([f"{name}={_text(value)}" for name, value in self.fields().items()])


def is_polled(path: str) -> bool:
    """Return True for what an open page asks for by itself: nobody looks for a trace of it."""
    return path in _POLLED or path.startswith("/page/")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _text(value: object) -> str:
    """Format as logfmt does: quoted where it would not be one word."""
    if not isinstance(value, str):
        return str(value)
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


_TEXT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats a record as an object: time, level, logger, message or the access line's fields."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, AccessLine):
            told |= record.msg.fields()
        else:
            told["message"] = record.getMessage()
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def configure_log(log_format: str) -> None:
    """Send this process's log to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler, LastLines()])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _utc(seconds: float) -> str:
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
