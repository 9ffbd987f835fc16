"""Spans reach a collector as OpenTelemetry's messages."""

import logging
import subprocess
import sys

import pytest

from sax.tracing import NO_TRACER, OtlpTracer, Span, SpanKind, TraceContext, tracer_of
from tests.each_case import each_case
from tests.otlp_collector import collecting

ABOVE = TraceContext(7, 9, sampled=True)


def span(context: TraceContext, **more: object) -> Span:
    told = {"name": "queue", "context": context, "began_ns": 1_000, "ended_ns": 3_000} | more
    return Span(**told)  # pyright: ignore[reportArgumentType]


def test_a_span_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
        tracer = OtlpTracer("sax-test")
        context = tracer.start(ABOVE)
        assert (context.trace_id, context.sampled) == (7, True)
        linked = TraceContext(11, 12, sampled=True)
        told = {"gen_ai.response.finish_reasons": ("stop",), "gen_ai.usage.input_tokens": 5}
        more = {"parent": ABOVE, "remote_parent": True, "kind": SpanKind.SERVER}
        tracer.record([span(context, attributes=told, links=(linked,), error="Internal", **more)])
        tracer.close()
        (found,) = collector.wait(lambda spans: len(spans) == 1)
    message = found.message
    assert (found.service, found.name, found.attributes) == (
        "sax-test",
        "queue",
        {"gen_ai.response.finish_reasons": ["stop"], "gen_ai.usage.input_tokens": 5},
    )
    assert (found.trace, found.id, found.parent) == (
        f"{7:032x}",
        f"{context.span_id:016x}",
        f"{9:016x}",
    )
    assert (message.start_time_unix_nano, message.end_time_unix_nano) == (1_000, 3_000)
    assert message.kind == message.SPAN_KIND_SERVER
    assert (message.status.code, message.status.message) == (2, "Internal")
    assert [each.trace_id.hex() for each in message.links] == [f"{11:032x}"]


@pytest.mark.parametrize(
    ("sampler", "alone", "below_recorded", "below_unrecorded"),
    [
        ("", True, True, False),
        ("always_off", False, False, False),
        ("parentbased_always_off", False, True, False),
    ],
)
def test_who_records_is_decided_as_opentelemetry_does(
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    alone: bool,
    below_recorded: bool,
    below_unrecorded: bool,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler or "parentbased_always_on")
    tracer = OtlpTracer("sax-test")
    assert tracer.start(None).sampled == alone
    assert tracer.start(ABOVE).sampled == below_recorded
    assert tracer.start(TraceContext(7, 9, sampled=False)).sampled == below_unrecorded
    tracer.close()


@each_case(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_is_recorded(environment: dict[str, str]) -> None:
    assert tracer_of(environment, "sax-test") is NO_TRACER
    assert NO_TRACER.start(ABOVE) is None


def test_a_protocol_that_is_not_supported_is_told(caplog: pytest.LogCaptureFixture) -> None:
    asked = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    caplog.set_level(logging.WARNING)
    assert tracer_of(asked, "sax-test") is NO_TRACER
    assert "only http/protobuf is supported" in caplog.text


def test_without_the_extra_the_log_says_what_to_install() -> None:
    code = """
import logging, sys
sys.modules["opentelemetry"] = None
logging.basicConfig()
from sax.tracing import NO_TRACER, tracer_of
assert tracer_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, "sax-test") is NO_TRACER
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install '.[traces]' in a clone" in done.stderr


def test_the_seam_brings_no_sdk() -> None:
    code = "import sys, sax.tracing; assert not [m for m in sys.modules if 'opentel' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)
