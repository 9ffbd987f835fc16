"""OtlpTracer: sends spans with OpenTelemetry's SDK, over HTTP, to a collector.

The SDK is an extra (`pip install sax[traces]`), so it is imported where it is used. Its own
variables hold: the endpoint, headers, certificates, sampler, resource, sizes of batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import NO_TRACER, Span, SpanKind, Tracer

if TYPE_CHECKING:
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
            "no traces are sent: $%s is set, and OpenTelemetry is not installed: "
            "pip install 'sax[traces]'",
            endpoint,
        )
        return NO_TRACER
    log.info("traces are sent to %s", get(endpoint))
    return tracer


class OtlpTracer(Tracer):
    """Sends in batches, on a thread of its own; drops what a collector does not take in time."""

    def __init__(self, service: str) -> None:
        """service: used unless the environment names one. Raises ImportError without the extra."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        resource = Resource.create({"service.version": version("sax")})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service}))
        self._resource = resource
        self._sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        self._scope = InstrumentationScope("sax", version("sax"))
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def start(self, parent: TraceContext | None) -> TraceContext:
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        context = TraceContext.root() if parent is None else parent.child()
        above = None
        if parent is not None:
            above = set_span_in_context(NonRecordingSpan(_context(parent, remote=True)))
        told = self._sampler.should_sample(above, context.trace_id, "")
        return TraceContext(context.trace_id, context.span_id, told.decision.is_sampled())

    def record(self, spans: Iterable[Span]) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, Status, StatusCode
        from opentelemetry.trace import SpanKind as Kind

        kinds = {
            SpanKind.INTERNAL: Kind.INTERNAL,
            SpanKind.SERVER: Kind.SERVER,
            SpanKind.CLIENT: Kind.CLIENT,
        }
        for span in spans:
            parent = span.parent and _context(span.parent, remote=span.remote_parent)
            self._processor.on_end(
                ReadableSpan(
                    span.name,
                    _context(span.context),
                    parent,
                    self._resource,
                    dict(span.attributes),
                    links=[Link(_context(each, remote=True)) for each in span.links],
                    kind=kinds[span.kind],
                    status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                    start_time=span.began_ns,
                    end_time=span.ended_ns,
                    instrumentation_scope=self._scope,
                )
            )

    def close(self) -> None:
        self._processor.force_flush(_CLOSE_MS)
        self._processor.shutdown()


def _context(context: TraceContext, *, remote: bool = False) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, remote, flags)
