"""One trace over the processes that a request passes, sent to a collector."""

from __future__ import annotations

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.two_replicas.conftest import SERVERS
from tests.otlp_collector import Collector, Received

GATEWAY, SERVER = "sax-gateway", "sax-model-server"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ROUTE = "POST /v1/chat/completions"
PHASES = ["decode", "detokenise", "prefill", "queue"]


def roots(spans: list[Received], trace: str = "") -> list[Received]:
    return [each for each in spans if each.name == ROUTE and each.trace == (trace or each.trace)]


def below(spans: list[Received], parent: Received) -> list[Received]:
    return sorted((each for each in spans if each.parent == parent.id), key=lambda each: each.name)


def _is_whole(spans: list[Received]) -> bool:
    """The trace has come from both processes: the server's spans end with that of its answer."""
    calls = [call for root in roots(spans, TRACE) for call in below(spans, root)]
    phases = [
        phase for call in calls for each in below(spans, call) for phase in below(spans, each)
    ]
    return [phase.name for phase in phases] == PHASES


def test_a_chat_is_one_trace_from_the_clients_span_to_the_chunks_of_its_prompt(
    twice: Cell, collector: Collector
) -> None:
    body = {"model": SMOLLM2, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Tell me of lighthouses. " * 100}]
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "traced-1"}
    reply = twice.http.post("/v1/chat/completions", json=body, headers=headers)
    usage = reply.json()["usage"]
    spans = collector.wait(_is_whole)  # each process sends its spans when it likes
    spans = [each for each in spans if each.trace == TRACE]
    (root,) = roots(spans)
    assert (root.service, root.parent) == (GATEWAY, CALLER)
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["sax.request.id"] == "traced-1"
    (call,) = below(spans, root)
    (answer,) = below(spans, call)
    assert (call.service, answer.service) == (GATEWAY, SERVER)
    assert call.name == answer.name == f"chat {SMOLLM2}"
    for each in (call, answer):
        assert each.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert each.attributes["gen_ai.usage.output_tokens"] == 12
        assert each.attributes["gen_ai.response.finish_reasons"] == ["length"]
    phases = below(spans, answer)
    assert [each.name for each in phases] == PHASES
    chunks = below(spans, phases[2])
    computed = [each.attributes["sax.prefill.tokens"] for each in chunks]
    assert len(computed) > 1
    cached = answer.attributes["gen_ai.usage.cache_read.input_tokens"]
    assert sum(computed) + cached == usage["prompt_tokens"]  # pyright: ignore
    # The clocks of both processes are this machine's.
    times = [each.message for each in (root, call, answer, *phases)]
    assert all(times[0].start_time_unix_nano <= each.start_time_unix_nano for each in times)
    assert all(each.end_time_unix_nano <= times[0].end_time_unix_nano for each in times)


def test_a_request_to_saxmls_route_is_traced_below_the_gateway(
    twice: Cell, collector: Collector
) -> None:
    query = {"model": SMOLLM2, "query": "How many days are in a week?"}
    assert twice.http.post("/generate", json=query).status_code == 200

    def answered(spans: list[Received]) -> list[tuple[Received, Received]]:
        asked = {each.id: each for each in spans if each.name == "POST /generate"}
        return [(asked[each.parent], each) for each in spans if each.parent in asked]

    ((root, answer),) = answered(collector.wait(lambda spans: bool(answered(spans))))
    assert (root.service, answer.service) == (GATEWAY, SERVER)
    assert root.trace == answer.trace != TRACE


def test_every_process_says_where_it_sends_its_traces(twice: Cell, collector: Collector) -> None:
    for name in ("gateway", *SERVERS):
        assert f"traces are sent to {collector.url}" in twice.log(name)
