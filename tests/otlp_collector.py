"""A collector of OTLP over HTTP: keeps the spans that arrive, as their own messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

_WAIT_S = 60.0


@dataclass(frozen=True)
class Received:
    """One span, and the name of the service that sent it."""

    service: str
    message: SpanMessage

    @property
    def name(self) -> str:
        return self.message.name

    @property
    def id(self) -> str:
        return self.message.span_id.hex()

    @property
    def parent(self) -> str:
        return self.message.parent_span_id.hex()

    @property
    def trace(self) -> str:
        return self.message.trace_id.hex()

    @property
    def attributes(self) -> dict[str, object]:
        return {each.key: _value(each.value) for each in self.message.attributes}


@dataclass
class Collector:
    """What has arrived so far; `wait` for more."""

    port: int = 0
    spans: list[Received] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            for resource in request.resource_spans:
                named = {each.key: _value(each.value) for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    service = str(named["service.name"])
                    self.spans += (Received(service, each) for each in scope.spans)
            self.changed.notify_all()

    def wait(self, holds: Callable[[list[Received]], bool]) -> list[Received]:
        """Return all spans once this holds of them."""
        until_s = time.monotonic() + _WAIT_S
        with self.changed:
            while not holds(self.spans):
                left_s = until_s - time.monotonic()
                assert left_s > 0, f"only {[each.name for each in self.spans]} arrived"
                self.changed.wait(left_s)
            return list(self.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
