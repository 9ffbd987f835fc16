"""One trace over the processes that a request passes, sent to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell, local_plan
from tests.end_to_end.test_moved_answers import SERVERS, both_ready, stream_of
from tests.otlp_collector import Collector, Received, collecting

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

GATEWAY, SERVER = "sax-gateway", "sax-model-server"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ROUTE = "POST /v1/chat/completions"
PHASES = ["decode", "detokenise", "prefill", "queue"]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, gguf: Path, collector: Collector
) -> Iterator[Cell]:
    """A cell with two replicas that sends its traces."""
    flags = ("--slots=8", "--max_context=1024", "--drain_seconds=0.5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        plan = local_plan(tmp_path_factory.mktemp("traced"), *flags, servers=2)
        with Cell(plan) as running:
            running.publish(str(gguf), replicas=2)
            both_ready(running)
            yield running


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
    traced: Cell, collector: Collector
) -> None:
    body = {"model": SMOLLM2, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Tell me of lighthouses. " * 100}]
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "traced-1"}
    reply = traced.http.post("/v1/chat/completions", json=body, headers=headers)
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
    traced: Cell, collector: Collector
) -> None:
    query = {"model": SMOLLM2, "query": "How many days are in a week?"}
    assert traced.http.post("/generate", json=query).status_code == 200

    def answered(spans: list[Received]) -> list[tuple[Received, Received]]:
        asked = {each.id: each for each in spans if each.name == "POST /generate"}
        return [(asked[each.parent], each) for each in spans if each.parent in asked]

    ((root, answer),) = answered(collector.wait(lambda spans: bool(answered(spans))))
    assert (root.service, answer.service) == (GATEWAY, SERVER)
    assert root.trace == answer.trace != TRACE


def test_an_answer_that_moves_to_another_replica_links_to_where_it_began(
    traced: Cell, collector: Collector
) -> None:
    seen = len(roots(collector.spans))
    stopped: list[str] = []
    for number, _ in enumerate(stream_of(traced, "Count from one upwards.", 300)):
        if number == 5:
            busy = [name for name in SERVERS if running(traced, name)]
            stopped += busy
            traced.terminate(busy[0])
    assert traced.ended(stopped[0]) == 0
    spans = collector.wait(lambda found: len(roots(found)) > seen)
    root = roots(spans)[-1]
    (call,) = [each for each in spans if each.parent == root.id]
    spans = collector.wait(lambda found: sum(each.parent == call.id for each in found) == 2)
    first, second = sorted(
        (each for each in spans if each.parent == call.id),
        key=lambda each: each.message.start_time_unix_nano,
    )
    assert [each.span_id.hex() for each in second.message.links] == [first.id]
    assert int(str(second.attributes["sax.answer.resumed_tokens"])) > 0
    assert call.attributes["gen_ai.usage.output_tokens"] == 300
    traced.start(stopped[0])
    both_ready(traced)


def running(cell: Cell, name: str) -> bool:
    """True if this server has a request in a slot."""
    server = cell.plan.model_servers[SERVERS.index(name)]
    text = httpx.get(server.metrics_url, trust_env=False).text
    return f'sax_requests_running{{model="{SMOLLM2}"}} 1.0' in text


def test_every_process_says_where_it_sends_its_traces(traced: Cell, collector: Collector) -> None:
    for name in ("gateway", f"{MODEL_SERVER} 0"):
        assert f"traces are sent to {collector.url}" in traced.log(name)
