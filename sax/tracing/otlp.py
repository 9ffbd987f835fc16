"""OtlpTracer: sends spans with OpenTelemetry's SDK, over HTTP, to a collector.

The SDK is the extra `traces`, so it is imported where it is used.
Its own variables hold: the endpoint, headers, certificates, sampler, resource, sizes of batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sax.distribution import how_to_install, version
from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import NO_TRACER, Span, Tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

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
    """Sends in batches, on a thread of its own; drops what a collector does not take in time."""

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
