"""Traces: the spans of requests, their attributes, and the tracer that sends them to a collector.

Spans are values: they are made when what they tell is over, so nothing is held while a request
runs, and a server without traces spends nothing on them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from sax.distribution import how_to_install, version
from sax.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"  # of HTTP headers and gRPC metadata

_WRITTEN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_ids = Random()  # they keep no secret, and several are drawn for each request

_current: ContextVar[str] = ContextVar("traceparent", default="")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span of one trace, as W3C's trace context writes it (`traceparent`)."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    sampled: bool  # somebody records the trace

    @classmethod
    def root(cls, *, sampled: bool = True) -> TraceContext:
        """Return the first span of a new trace."""
        return cls(_drawn(128), _drawn(64), sampled)

    @classmethod
    def parse(cls, written: str) -> TraceContext | None:
        """Return what a `traceparent` says; None if it says nothing, which is no error."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        told = cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
        later = version != "00"  # of a later version we read what we know
        if version == "ff" or (more and not later) or not (told.trace_id and told.span_id):
            return None
        return told

    def child(self) -> TraceContext:
        """Return a new span of the same trace."""
        return TraceContext(self.trace_id, _drawn(64), self.sampled)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def enter(traceparent: str) -> None:
    """Let the calls of this task, and of those that it starts, belong to this span; "": to none."""
    _current.set(traceparent)


def current() -> str:
    """Return the span that calls of this task belong to; "" for none."""
    return _current.get()


def _drawn(bits: int) -> int:
    return _ids.getrandbits(bits) or 1


Value = str | bool | int | float | Sequence[str]


class SpanKind(Enum):
    """The part of its process in a call."""

    INTERNAL = "internal"
    SERVER = "server"  # it answers one
    CLIENT = "client"  # it makes one


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time, and is over."""

    name: str
    context: TraceContext
    parent: TraceContext | None = None
    remote_parent: bool = False  # the parent is of another process
    kind: SpanKind = SpanKind.INTERNAL
    began_ns: int  # since 1970
    ended_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict[str, Value])
    links: Sequence[TraceContext] = ()
    error: str = ""  # what failed; "": nothing did


class Tracer:
    """Records spans, which servers hand over. This one records none."""

    def start(self, parent: TraceContext | None) -> TraceContext | None:
        """Return a new span below this one, or the first of a trace; None if nobody records."""
        return None

    def record(self, spans: Iterable[Span]) -> None:
        """Hand over spans that are over. Never waits."""

    def close(self) -> None:
        """Send what was recorded, within seconds."""


NO_TRACER = Tracer()

# Names of attributes: OpenTelemetry's (https://opentelemetry.io/docs/specs/semconv/gen-ai/), ours.
PROVIDER = "gen_ai.provider.name"
OPERATION = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
ERROR_TYPE = "error.type"
METHOD, ROUTE, STATUS = "http.request.method", "http.route", "http.response.status_code"
REQUEST_ID = "sax.request.id"
TOOL_NAME, MCP_SERVER = "gen_ai.tool.name", "sax.mcp.server"

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "frequency_penalty",
    "presence_penalty",
)
_PLAIN = SamplingParams()


def operation_of(request: GenerateRequest) -> str:
    """Return the name that the conventions have for what is asked."""
    prompt = request.prompt
    chat = not isinstance(prompt, str) and any(not isinstance(part, int) for part in prompt)
    return "chat" if chat else "text_completion"


def attributes_of(request: GenerateRequest) -> dict[str, Value]:
    """Return what a request says of itself, without its text and without fields left alone."""
    told: dict[str, Value] = {
        PROVIDER: "sax",
        OPERATION: operation_of(request),
        REQUEST_MODEL: request.model_id,
    }
    if request.request_id:
        told[REQUEST_ID] = request.request_id
    for name in _SAMPLING:
        value = getattr(request.sampling, name)
        if value is not None and value != getattr(_PLAIN, name):
            told[f"gen_ai.request.{name}"] = value
    return told


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CLOSE_MS = 3000


def tracer_of(environment: Mapping[str, str], service: str) -> Tracer:
    """Return the tracer that the environment asks for, which is none unless it names an endpoint.

    service: name of this process's kind, unless the environment gives another.
    """
    get = environment.get
    endpoint = next((name for name in _ENDPOINTS if get(name)), "")
    off = get("OTEL_SDK_DISABLED", "").lower() == "true" or get("OTEL_TRACES_EXPORTER") == "none"
    if not endpoint or off:
        return NO_TRACER
    protocol = next((found for name in _PROTOCOLS if (found := get(name))), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning(
            "no traces are sent: the protocol is %s, and only http/protobuf is supported (port "
            "4318 of most collectors)",
            protocol,
        )
        return NO_TRACER
    try:
        tracer = OtlpTracer(service)
    except ImportError:
        log.warning(
            "no traces are sent: $%s is set, and OpenTelemetry is not installed: %s",
            endpoint,
            how_to_install("traces"),
        )
        return NO_TRACER
    log.info("traces are sent to %s", get(endpoint))
    return tracer


class OtlpTracer(Tracer):
    """Sends spans with OpenTelemetry's SDK over HTTP, in batches on its own thread; drops what a
    collector does not take in time.

    The SDK is the extra `traces`, so it is imported where it is used. Its variables hold: the
    endpoint, headers, certificates, sampler, resource, sizes of batches.
    """

    def __init__(self, service: str) -> None:
        """service: used unless the environment names one. Raises ImportError without the extra."""
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        resource = Resource.create({"service.version": version()})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service}))
        self._trace, self._sdk = trace, sdk
        self._resource = resource
        self._sampler = sdk.TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        self._scope = InstrumentationScope("sax", version())
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def start(self, parent: TraceContext | None) -> TraceContext:
        context = TraceContext.root() if parent is None else parent.child()
        told = self._sampler.should_sample(self._above(parent), context.trace_id, "")
        return TraceContext(context.trace_id, context.span_id, told.decision.is_sampled())

    def record(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        self._processor.force_flush(_CLOSE_MS)
        self._processor.shutdown()

    def _above(self, parent: TraceContext | None) -> Context | None:
        if parent is None:
            return None
        span = self._trace.NonRecordingSpan(self._context(parent, remote=True))
        return self._trace.set_span_in_context(span)

    def _readable(self, span: Span) -> ReadableSpan:
        trace = self._trace
        parent = span.parent and self._context(span.parent, remote=span.remote_parent)
        status = trace.Status()
        if span.error:
            status = trace.Status(trace.StatusCode.ERROR, span.error)
        return self._sdk.ReadableSpan(
            span.name,
            self._context(span.context),
            parent,
            self._resource,
            dict(span.attributes),
            links=[trace.Link(self._context(each, remote=True)) for each in span.links],
            kind=trace.SpanKind[span.kind.name],
            status=status,
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=self._scope,
        )

    def _context(self, context: TraceContext, *, remote: bool = False) -> SpanContext:
        flags = self._trace.TraceFlags(context.sampled)  # the first bit
        return self._trace.SpanContext(context.trace_id, context.span_id, remote, flags)
