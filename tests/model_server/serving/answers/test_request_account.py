"""When a request arrived, began and had its tokens, as times and as spans."""

import asyncio
from dataclasses import replace

from model_server.engine.request import PromptChunk, SequenceUpdate
from model_server.engine.types import RowResult
from model_server.serving.answers.request_account import AnswerTrace, RequestTimes
from model_server.serving.handler import GENERATE_STREAM
from model_server.serving.metrics.request_tally import BucketCounts, RequestTally
from sax.tracing import SpanKind, TraceContext, Tracer
from sax.types import AnswerSoFar, GenerateRequest, Message, SamplingParams
from tests.model_server.fake_model import FakeModels
from tests.model_server.serving.test_handler import MODEL, handling
from tests.recorded_spans import RecordedSpans

ARRIVED_S = 100.0


def token(read_s: float, started_s: float = 103.0) -> SequenceUpdate:
    return SequenceUpdate(1, RowResult(7), read_s=read_s, started_s=started_s)


def told(each: BucketCounts) -> tuple[int, float]:
    return each.count, round(each.sum, 6)


def test_a_request_is_divided_into_queue_prefill_and_decode() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (105.0, 105.25, 106.0):
        times.token(token(read_s), now_s=read_s + 0.5)
    times.succeed(107.0, prompt_tokens=9, answer_tokens=3, reason="length")
    assert times.queue_s == 3.0
    assert told(tally.queue) == (1, 3.0)
    assert told(tally.prefill) == (1, 2.0)
    assert told(tally.decode) == (1, 1.0)
    assert told(tally.computing) == (1, 3.0)
    assert told(tally.first_token) == (1, 5.5)
    assert told(tally.whole) == (1, 7.0)
    assert told(tally.interval) == (2, 1.0)
    assert told(tally.per_token) == (1, 0.5)
    assert told(tally.prompt_tokens) == (1, 9)
    assert told(tally.answer_tokens) == (1, 3)
    assert tally.ended == {"length": 1}


def test_tokens_of_one_step_have_no_time_between_them() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (104.0, 104.5, 104.5, 104.5):  # three tokens that were drafted or forced
        times.token(token(read_s), now_s=read_s)
    assert told(tally.interval) == (3, 0.5)


def test_a_prompt_that_another_server_computed_did_not_wait_here() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    times.token(token(0.0, 0.0), now_s=104.0)  # no step of this server's gave it
    times.token(token(104.5), now_s=105.0)
    assert times.queue_s == 0.0
    assert told(tally.queue) == (0, 0.0)
    assert told(tally.prefill) == (0, 0.0)
    assert told(tally.interval) == (1, 0.5)


def test_a_request_without_an_answer_only_says_how_it_ended() -> None:
    tally = RequestTally()
    RequestTimes(tally, ARRIVED_S).end("refused")
    RequestTimes(tally, ARRIVED_S).succeed(101.0, 0, 0, "score")
    assert tally.ended == {"refused": 1, "score": 1}
    assert told(tally.decode) == told(tally.prompt_tokens) == (0, 0.0)


def test_an_answer_that_was_begun_elsewhere_has_the_mean_time_of_its_tokens_here() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (104.0, 106.0):
        times.token(token(read_s), now_s=read_s)
    times.succeed(107.0, prompt_tokens=9, answer_tokens=300, reason="stop")
    assert told(tally.per_token) == (1, 2.0)
    assert told(tally.answer_tokens) == (1, 300)


ABOVE = TraceContext(7, 9, sampled=True)
OWN = TraceContext(7, 10, sampled=True)
ZERO_NS = 10**18
REQUEST = GenerateRequest(
    model_id=MODEL,
    prompt=(Message("user", "hi"),),
    sampling=SamplingParams(temperature=0.5, max_tokens=9),
    request_id="abc/1",
)


class Spans(RecordedSpans):
    def seconds(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each, in the engine's time."""
        return {
            each.name: ((each.began_ns - ZERO_NS) / 1e9, (each.ended_ns - ZERO_NS) / 1e9)
            for each in self.all
        }


def traced(tracer: Tracer, request: GenerateRequest = REQUEST) -> AnswerTrace:
    return AnswerTrace(tracer, OWN, ABOVE, request, (ZERO_NS + 50 * 10**9, 50.0))


def times(*read_s: float) -> RequestTimes:
    made = RequestTimes(RequestTally(), 50.0)
    for each in read_s:
        made.token(SequenceUpdate(1, RowResult(1), read_s=each, started_s=51.0), each)
    return made


def test_an_answer_is_divided_into_its_phases() -> None:
    spans = Spans()
    trace = traced(spans)
    trace.take([PromptChunk(0, 256, 51.0, 51.5), PromptChunk(256, 44, 51.5, 52.0)])
    trace.detokenise_s = 0.25
    trace.end(times(52.0, 53.0, 55.0), 56.0, {"gen_ai.usage.output_tokens": 3})
    assert spans.seconds() == {
        "queue": (50.0, 51.0),
        "prefill": (51.0, 52.0),
        "prefill chunk": (51.5, 52.0),  # the second; the first has the same name
        "decode": (52.0, 55.0),
        "detokenise": (52.0, 56.0),
        f"chat {MODEL}": (50.0, 56.0),
    }
    (whole,) = spans.named(f"chat {MODEL}")
    (prefill,) = spans.named("prefill")
    chunks = spans.named("prefill chunk")
    assert (whole.context, whole.parent, whole.kind) == (OWN, ABOVE, SpanKind.SERVER)
    assert [each.parent for each in chunks] == [prefill.context] * 2
    assert [each.attributes["sax.prefill.tokens"] for each in chunks] == [256, 44]
    phases = [each for each in spans.all if each not in (whole, *chunks)]
    assert {each.parent for each in phases} == {OWN}
    assert len({each.context.span_id for each in spans.all}) == len(spans.all)
    assert whole.attributes == {
        "gen_ai.provider.name": "sax",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "sax.request.id": "abc/1",
        "gen_ai.usage.output_tokens": 3,
    }


def test_a_request_that_never_began_was_in_the_queue_to_its_end() -> None:
    spans = Spans()
    traced(spans).end(times(), 60.0, {}, "DeadlineExceeded")
    assert spans.seconds() == {"queue": (50.0, 60.0), f"chat {MODEL}": (50.0, 60.0)}
    assert spans.all[-1].error == "DeadlineExceeded"
    assert spans.all[-1].attributes["error.type"] == "DeadlineExceeded"


def test_many_chunks_share_spans_and_none_is_left_out() -> None:
    spans = Spans()
    trace = traced(spans)
    trace.take([PromptChunk(i * 8, 8, 51.0 + i, 52.0 + i) for i in range(1000)])
    trace.end(times(1051.0), 1052.0, {})
    chunks = spans.named("prefill chunk")
    assert len(chunks) <= 64
    assert sum(each.attributes["sax.prefill.tokens"] for each in chunks) == 8000  # pyright: ignore
    assert sum(each.attributes["sax.prefill.steps"] for each in chunks) == 1000  # pyright: ignore


def test_an_answer_that_another_replica_began_links_to_its_span() -> None:
    spans = Spans()
    before = TraceContext(7, 99, sampled=True)
    begun = AnswerSoFar(token_ids=(4, 5), traceparent=str(before))
    request = GenerateRequest(model_id=MODEL, prompt="hi", answer=begun)
    traced(spans, request).end(times(52.0), 53.0, {})
    assert spans.all[-1].links == (before,)
    assert spans.all[-1].attributes["sax.answer.resumed_tokens"] == 2


async def test_a_request_with_a_span_is_traced_below_it_from_the_queue_to_the_text() -> None:
    spans, over = Spans(), asyncio.get_running_loop().create_future()
    chunks = []

    def sink(chunk: object) -> None:
        chunks.append(chunk)
        if getattr(chunk, "finish_reason", None):
            over.set_result(None)

    async with handling(FakeModels(), spans) as handler:
        handler.start(replace(REQUEST, traceparent=str(ABOVE)), GENERATE_STREAM, sink)
        await over
    (whole,) = spans.named(f"chat {MODEL}")
    assert whole.parent == ABOVE
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert whole.attributes["gen_ai.usage.output_tokens"] == 9
    assert {each.name for each in spans.all} == {
        whole.name,
        "queue",
        "prefill",
        "prefill chunk",
        "decode",
        "detokenise",
    }
    assert [each.traceparent for each in chunks] == [str(whole.context), *[""] * (len(chunks) - 1)]
    assert all(whole.began_ns <= each.began_ns <= each.ended_ns for each in spans.all)
    assert all(each.ended_ns <= whole.ended_ns for each in spans.all)
