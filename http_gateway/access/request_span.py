"""RequestSpan: the span of one HTTP request, and below it those of its calls to the cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sax.errors import Cancelled, SaxError, wire_name
from sax.tracing import attributes as names
from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import Span, SpanKind, Tracer, Value
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
                    names.OPERATION: "execute_tool",
                    names.TOOL_NAME: name,
                    names.MCP_SERVER: server,
                },
                error=error,
            )
            self._tracer.record((span,))

        return end

    def end(self, method: str, route: str, status: int, more: dict[str, Value]) -> None:
        """Record it. more: further attributes, of which empty ones say nothing."""
        told: dict[str, Value] = {names.METHOD: method, names.ROUTE: route, names.STATUS: status}
        failed = str(status) if status >= 500 else ""
        if failed:
            told[names.ERROR_TYPE] = failed
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
        told, failed = names.attributes_of(self._request), ""
        if isinstance(error, SaxError) and not isinstance(error, Cancelled):
            told[names.ERROR_TYPE] = failed = wire_name(error)
        if (last := self._last) is not None:
            told[names.INPUT_TOKENS] = last.prompt_tokens
            told[names.OUTPUT_TOKENS] = last.completion_tokens
            if last.finish_reason:
                told[names.FINISH_REASONS] = (last.finish_reason,)
        span = Span(
            name=f"{told[names.OPERATION]} {self._request.model_id}",
            context=self.context,
            parent=self._parent,
            kind=SpanKind.CLIENT,
            began_ns=self._began_ns,
            ended_ns=time.time_ns(),
            attributes=told,
            error=failed,
        )
        self._tracer.record((span,))
