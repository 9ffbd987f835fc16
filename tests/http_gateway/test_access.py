"""The access line of each request, and its spans: what is known of it and nothing that was said."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.access import AccessLine, JsonFormatter, RequestRecord
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.errors import ReplicaLost
from sax.tracing import NO_TRACER, Span, SpanKind, TraceContext, Tracer
from sax.types import AnswerFormat, TokenChunk
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell
from tests.http_gateway.test_app import WAIT_S, drop_after
from tests.identities import Identities
from tests.recorded_spans import RecordedSpans

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SECRET = "tell-nobody"
ASK = {"model": "llama", "prompt": SECRET}
Lines = Callable[[], list[dict[str, object]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The fields of the access lines so far."""
    caplog.set_level(logging.INFO, "http_gateway.access")

    def read() -> list[dict[str, object]]:
        return [each.msg.fields() for each in caplog.records if isinstance(each.msg, AccessLine)]

    return read


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_leaves_one_line_with_what_it_was_and_took(
    http: httpx.AsyncClient, lines: Lines, stream: bool
) -> None:
    sent = {"x-request-id": "abc-1"}
    answer = await http.post(COMPLETIONS, json={**ASK, "stream": stream}, headers=sent)
    (line,) = lines()
    assert isinstance(line["first_token_s"], float)
    assert isinstance(line["total_s"], float)
    assert 0 <= line.pop("first_token_s") <= line.pop("total_s") + 1e-3  # pyright: ignore[reportOperatorIssue]
    assert line == {
        "method": "POST",
        "route": COMPLETIONS,
        "status": 200,
        "model": "/sax/test/llama",
        "key": "127.0.0.1",
        "prompt_tokens": len(SECRET),
        "completion_tokens": 5,
        "bytes_in": len(answer.request.content),
        "bytes_out": len(answer.content),
        "request_id": "abc-1",
    } | ({"ended": "complete"} if stream else {})


@pytest.mark.parametrize("stream", [True, False])
async def test_the_line_tells_how_long_the_answer_waited_and_so_does_the_reply(
    http: httpx.AsyncClient, cell: FakeCell, lines: Lines, stream: bool
) -> None:
    cell.queue_s = 1.25
    answer = await http.post(COMPLETIONS, json={**ASK, "stream": stream, "n": 2})
    (line,) = lines()
    assert line["queue_s"] == 1.25
    assert answer.headers["x-sax-queue-seconds"] == "1.2500"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_says_if_the_model_calls_tools_in_saxs_own_form(
    http: httpx.AsyncClient, cell: FakeCell, stream: bool
) -> None:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    for generic in (True, False):
        told = AnswerFormat("hermes", generic=generic)
        cell.said = (TokenChunk("So", (1,), finish_reason="stop", seed=1, answer_format=told),)
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.headers.get("x-sax-tools") == ("generic" if generic else None)


async def test_the_line_of_a_known_caller_has_its_name_and_of_a_stranger_its_address(
    cell: FakeCell, tmp_path: Path, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    people = Identities(tmp_path, "alice")
    app = create_app(cell, GatewayConfig(), Authentication(TokenFile(people.path)))
    transport = httpx.ASGITransport(app, client=("2001:db8::1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        await http.post(COMPLETIONS, json=ASK, headers=people.headers("alice"))
        await http.post(COMPLETIONS, json=ASK)
    keys = [(line["key"], line["status"]) for line in lines()]
    assert keys == [("alice", 200), ("2001:db8::/64", 401)]
    assert people.tokens["alice"] not in caplog.text


async def test_no_line_holds_what_a_client_said_but_for_its_request_id(
    http: httpx.AsyncClient, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "user-agent": SECRET}
    for path in (COMPLETIONS, f"/{SECRET}", f"/v1/models/{SECRET}", f"/listall?sax_cell={SECRET}"):
        await http.post(path, json={**ASK, SECRET: 1}, headers=headers)
        await http.post(path, json={"model": SECRET, "prompt": SECRET}, headers=headers)
    assert len(lines()) == 8
    assert SECRET not in caplog.text


async def test_probes_and_scrapes_leave_a_line_only_if_they_fail(
    cell: FakeCell, http: httpx.AsyncClient, lines: Lines
) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await http.get(path)).status_code == 200
    assert lines() == []
    cell.models = {}
    await http.get("/readyz")
    assert [(line["route"], line["status"]) for line in lines()] == [("/readyz", 503)]


async def test_the_line_of_a_stream_that_broke_says_so(
    cell: FakeCell, http: httpx.AsyncClient, lines: Lines
) -> None:
    cell.failure, cell.fail_at = ReplicaLost("gone"), 2
    await http.post(COMPLETIONS, json={**ASK, "stream": True})
    cell.fail_at = 0
    await http.post(COMPLETIONS, json={**ASK, "stream": True})
    told = [(line["status"], line.get("ended"), line.get("completion_tokens")) for line in lines()]
    assert told == [(200, "broken", 2), (503, "refused", None)]


async def test_without_an_access_log_there_are_no_lines(connect: Connect, lines: Lines) -> None:
    http = connect(GatewayConfig(access_log="off"))
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    assert (await http.get("/no/such")).status_code == 404
    assert lines() == []


@pytest.mark.parametrize(("stream", "status"), [(True, 200), (False, 499)])
def test_a_client_that_goes_away_leaves_a_line_too(
    cell: FakeCell, live_url: str, lines: Lines, stream: bool, status: int
) -> None:
    cell.hold_after = 2
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    opened = threading.Event()
    cell.on_open = opened.set
    drop_after(live_url, CHATS, body, lambda: opened.wait(WAIT_S))
    while not lines():
        time.sleep(0.01)
    (line,) = lines()
    assert (line["status"], line["ended"], line["model"]) == (status, "gone", "/sax/test/smollm2")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (1, 2)  # so far


ANY = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)


@given(request_id=ANY)
def test_a_line_is_one_line_and_can_be_read_back(request_id: str) -> None:
    record = RequestRecord(request_id, "GET", key="alice")
    text = str(AccessLine(record, "/v1/models", 200, 0.25, 0, 17))
    before = "method=GET route=/v1/models status=200 key=alice total_s=0.25 bytes_in=0 bytes_out=17"
    assert text.startswith(f"{before} request_id=")
    value = text.partition("request_id=")[2]
    assert (json.loads(value) if value.startswith('"') else value) == request_id
    assert "\n" not in text


def test_json_has_the_fields_of_a_line_and_the_message_of_others() -> None:
    record = RequestRecord("abc-1", "GET", model="/sax/test/m")
    line = AccessLine(record, "/v1/models/{name}", 200, 0.25, 0, 17)
    form = JsonFormatter()
    told = json.loads(form.format(_log(line)))
    assert (told["model"], told["status"], told["total_s"]) == ("/sax/test/m", 200, 0.25)
    assert (told["logger"], told["level"]) == ("http_gateway.access", "info")
    assert told["time"] == "1970-01-01T00:00:01.500Z"
    assert "message" not in told
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        failed = _log("request %s failed", "x", error=error)
    text = form.format(failed)
    assert "\n" not in text
    assert json.loads(text)["message"] == "request x failed"
    assert "two\nlines" in json.loads(text)["exception"]


def _log(message: object, *args: object, error: Exception | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("http_gateway.access", logging.INFO, "", 1, message, args, info)
    record.created = 1.5
    return record


ABOVE = TraceContext(7, 9, sampled=True)
ASKED = {"model": "llama", "prompt": "tell-nobody", "max_tokens": 3}


async def ask(cell: FakeCell, tracer: Tracer, parent: object = "", **more: object) -> int:
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig(), tracer=tracer))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        headers = {"traceparent": str(parent)} if parent else {}
        reply = await http.post(COMPLETIONS, json={**ASKED, **more}, headers=headers)
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
