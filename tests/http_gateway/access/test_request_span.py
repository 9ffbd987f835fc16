"""The gateway's spans: one for each request, and one for each answer that it asks the cell for."""

from __future__ import annotations

import logging

import httpx
import pytest

from http_gateway.access.line import AccessLine
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.errors import ReplicaLost
from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import NO_TRACER, Span, SpanKind, Tracer
from tests.http_gateway.fake_cell import FakeCell
from tests.recorded_spans import RecordedSpans

COMPLETIONS = "/v1/completions"
ABOVE = TraceContext(7, 9, sampled=True)
ASK = {"model": "llama", "prompt": "tell-nobody", "max_tokens": 3}


async def ask(cell: FakeCell, tracer: Tracer, parent: object = "", **more: object) -> int:
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig(), tracer=tracer))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        headers = {"traceparent": str(parent)} if parent else {}
        reply = await http.post(COMPLETIONS, json={**ASK, **more}, headers=headers)
        return reply.status_code


def parts(spans: RecordedSpans) -> tuple[Span, list[Span]]:
    *calls, root = spans.all
    return root, calls


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_a_span_and_each_of_its_answers_one_below(
    cell: FakeCell, stream: bool
) -> None:
    spans = RecordedSpans()
    assert await ask(cell, spans, ABOVE, stream=stream, n=2) == 200
    root, calls = parts(spans)
    assert (root.name, root.kind, root.parent) == (f"POST {COMPLETIONS}", SpanKind.SERVER, ABOVE)
    assert root.context.trace_id == 7
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["gen_ai.request.model"] == "/sax/test/llama"
    assert [call.parent for call in calls] == [root.context] * 2
    assert {str(call.context) for call in calls} == {each.traceparent for each in cell.requests}
    for call in calls:
        assert call.kind is SpanKind.CLIENT
        assert call.name == "text_completion /sax/test/llama"
        assert call.attributes["gen_ai.usage.output_tokens"] == 3
        assert call.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert "tell-nobody" not in str([each.attributes for each in spans.all])


async def test_the_access_line_names_the_trace(
    cell: FakeCell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "http_gateway.access")
    await ask(cell, RecordedSpans(), ABOVE)
    await ask(cell, NO_TRACER, ABOVE)
    lines = [each.msg.fields() for each in caplog.records if isinstance(each.msg, AccessLine)]
    assert [line.get("trace_id") for line in lines] == [f"{7:032x}", None]


async def test_an_answer_that_fails_says_so_in_its_span(cell: FakeCell) -> None:
    spans = RecordedSpans()
    cell.failure = ReplicaLost("gone")
    assert await ask(cell, spans) == 503
    root, (call,) = parts(spans)
    assert (call.error, call.attributes["error.type"]) == ("ReplicaLost", "ReplicaLost")
    assert (root.error, root.parent) == ("503", None)


async def test_a_trace_that_nobody_records_is_passed_on_and_not_recorded(cell: FakeCell) -> None:
    spans = RecordedSpans()
    await ask(cell, spans, TraceContext(7, 9, sampled=False))
    assert not spans.all
    told = TraceContext.parse(cell.requests[0].traceparent)
    assert told is not None
    assert (told.trace_id, told.sampled) == (7, False)


async def test_without_traces_of_its_own_a_gateway_passes_the_clients_span_on(
    cell: FakeCell,
) -> None:
    await ask(cell, NO_TRACER, ABOVE)
    await ask(cell, NO_TRACER)
    await ask(cell, NO_TRACER, "nonsense")
    assert [each.traceparent for each in cell.requests] == [str(ABOVE), "", ""]
