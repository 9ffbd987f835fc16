"""What a scraper reads over HTTP, by our names, vLLM's, and versions."""

from __future__ import annotations

import asyncio
import threading
import urllib.request

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from model_server.flags.command_line import make_config
from model_server.serving.metrics.registry import NAMES, OLDER, ModelServerMetrics
from sax.activity import Activity
from tests.model_server.fake_model import LIMITS, MEMORY, FakeModels
from tests.model_server.fake_server import MODEL, Served, Stream, serving
from tests.model_server.waiting import until


async def test_an_idle_model_shows_its_room() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        assert await served.metric("sax_slots") == LIMITS.slots
        assert await served.metric("sax_pages") == LIMITS.pages
        assert await served.metric("sax_memory_bytes") == MEMORY
        for name in ("sax_slots_used", "sax_pages_used", "sax_requests_running"):
            assert await served.metric(name) == 0
        assert await served.metric("sax_compiles_while_serving_total", model=None) == 0


async def test_running_and_waiting_requests_show() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate), metrics_port=0) as served:
        stream = Stream(served)
        for id in range(LIMITS.slots + 2):
            await stream.ask(id, max_tokens=200)
        servable = served.servable()
        # One more step for every look: how many it takes until all have arrived is theirs to say.
        await until(lambda: servable.stats().slots_used == LIMITS.slots or gate.release())
        await until(lambda: servable.stats().waiting == 2)
        assert await served.metric("sax_requests_running") == LIMITS.slots
        assert await served.metric("sax_requests_waiting") == 2
        assert await served.metric("sax_slots_used") == LIMITS.slots
        used = await served.metric("sax_pages_used")
        assert await served.metric("sax_kv_cache_usage_ratio") == used / LIMITS.pages > 0
        gate.release(10_000)
        await stream.until_over(*range(LIMITS.slots + 2))
        assert await served.metric("sax_requests_waiting") == 0


async def test_counters_count_tokens_and_histograms_requests() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1, "hello", max_tokens=7)
        await stream.ask(2, "hi", max_tokens=1)
        await stream.ask(3, max_tokens=0)
        await stream.until_over(1, 2, 3)
        assert await served.metric("sax_prompt_tokens_total") == 7
        assert await served.metric("sax_generated_tokens_total") == 8
        assert await served.metric("sax_steps_total") >= 7
        assert await served.metric("sax_preemptions_total") == 0
        assert await served.metric("sax_time_to_first_token_seconds_count") == 2
        # An answer of one token has no time between tokens.
        assert await served.metric("sax_time_per_output_token_seconds_count") == 1


async def test_the_status_tells_an_admin_the_same_totals() -> None:
    async with serving(FakeModels()) as served:
        (idle,) = served.server.servables.infos()
        assert (idle.activity.slots, idle.activity.pages) == (LIMITS.slots, LIMITS.pages)
        assert idle.activity == Activity(slots=LIMITS.slots, pages=LIMITS.pages)
        stream = Stream(served)
        await stream.ask(1, "hello", max_tokens=7)
        await stream.ask(2, "hi", max_tokens=1)
        await stream.until_over(1, 2)
        (busy,) = served.server.servables.infos()
        told = busy.activity
        assert (told.prompt_tokens, told.generated_tokens) == (7, 8)
        # An answer of one token has no time between tokens.
        assert (told.answers_begun, told.answers_timed) == (2, 1)
        assert told.first_token_s > 0
        assert told.token_interval_s > 0


async def test_each_model_has_its_own_figures() -> None:
    other = "/sax/test/other"
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(other)
        stream = Stream(served)
        await stream.ask(1, model=other, max_tokens=5)
        await stream.until_over(1)
        assert await served.metric("sax_generated_tokens_total", other) == 5
        assert await served.metric("sax_generated_tokens_total", MODEL) == 0


async def test_a_request_tells_its_times_its_sizes_and_its_end() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1, "hello", max_tokens=7)
        await stream.until_over(1)
        for name in ("queue", "prefill", "decode", "inference"):
            assert await served.metric(f"sax_request_{name}_seconds_count") == 1
        assert await served.metric("sax_request_seconds_count") == 1
        assert await served.metric("sax_inter_token_latency_seconds_count") == 6
        assert await served.metric("sax_request_prompt_tokens_sum") == 5
        assert await served.metric("sax_request_generated_tokens_sum") == 7
        assert await served.metric("sax_request_max_tokens_sum") == 7
        ended = f'sax_requests_ended_total{{model="{MODEL}",reason="length"}}'
        assert await served.metric(ended, model=None) == 1
        theirs = f'vllm:generation_tokens_total{{model_name="{MODEL}"}}'
        assert await served.metric(theirs, model=None) == 7


async def test_tokens_that_share_a_message_are_counted_one_by_one() -> None:
    async with serving(FakeModels(stream_interval_s=1.0), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1, "hello", max_tokens=20)
        await stream.until_over(1)
        assert len(stream.chunks[1]) < 20
        assert await served.metric("sax_inter_token_latency_seconds_count") == 19


async def test_a_cancelled_request_is_counted_as_such() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=200)
        servable = served.servable()
        await until(lambda: servable.stats().slots_used == 1)
        await stream.cancel(1)
        await until(lambda: servable.cancelled == 1)
        gate.release(10_000)
        ended = f'sax_requests_ended_total{{model="{MODEL}",reason="cancelled"}}'
        assert await served.metric(ended, model=None) == 1
        assert await served.metric("sax_request_seconds_count") == 0


async def test_a_prompt_that_does_not_fit_is_refused_and_no_error_of_the_server() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1, "x" * 300, max_tokens=5)  # a thread encodes it
        await stream.ask(2, "x" * LIMITS.max_context * 2, max_tokens=5)
        await stream.until_over(1, 2)
        assert set(stream.failures) == {2}
        ended = f'sax_requests_ended_total{{model="{MODEL}",reason="refused"}}'
        assert await served.metric(ended, model=None) == 1


async def test_a_flag_leaves_vllms_names_out() -> None:
    flag = make_config(["--no-vllm_metric_names"]).vllm_metric_names
    async with serving(FakeModels(), metrics_port=0, vllm_metric_names=flag) as served:
        url = f"http://{served.server.metrics_address}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        assert "sax_requests_running" in text
        assert "vllm:" not in text


OTHER = "/sax/test/m"


def metrics(*, vllm_names: bool = True) -> ModelServerMetrics:
    made = ModelServerMetrics(lambda: (), lambda: 0, vllm_names=vllm_names)
    tally = made.tally(OTHER)
    tally.interval.observe(0.03)
    tally.interval.observe(0.3)
    tally.ended.update({"stop": 3, "cancelled": 2, "refused": 5, "score": 1})
    return made


def families(registry: CollectorRegistry) -> dict[str, Metric]:
    text = generate_latest(registry).decode()
    return {each.name: each for each in text_string_to_metric_families(text)}


def test_every_name_has_the_samples_of_ours() -> None:
    found = families(metrics().registry)
    for ours, theirs in (*NAMES, *OLDER):
        assert found[theirs].type == found[ours].type
        assert found[theirs].documentation == found[ours].documentation
    ours, theirs = (
        found["sax_inter_token_latency_seconds"],
        found["vllm:inter_token_latency_seconds"],
    )
    assert [each.value for each in theirs.samples] == [each.value for each in ours.samples]
    assert theirs.samples[0].labels == {"model_name": OTHER, "le": "0.001"}


def test_no_name_is_given_twice() -> None:
    theirs = [name for _, name in (*NAMES, *OLDER)]
    assert len(theirs) == len(set(theirs))


def test_an_end_has_the_reason_that_vllm_has_for_it() -> None:
    found = families(metrics().registry)
    reasons = {each.labels["finished_reason"]: each.value for each in ended(found)}
    assert reasons == {"stop": 3, "abort": 2}


def ended(found: dict[str, Metric]) -> list[Sample]:
    samples = found["vllm:request_success"].samples
    assert {each.name for each in samples} == {"vllm:request_success_total"}
    return list(samples)


def test_the_names_can_be_left_out() -> None:
    found = families(metrics(vllm_names=False).registry)
    assert "sax_requests_ended" in found
    assert not [name for name in found if name.startswith("vllm:")]


def test_the_process_tells_of_itself() -> None:
    assert {"process_resident_memory_bytes", "process_open_fds"} <= set(
        families(metrics().registry)
    )


OLD, NEW = "a" * 32, "b" * 32


async def counted(served: Served) -> dict[str, float]:
    """The figures by version and outcome."""
    url = f"http://{served.server.metrics_address}/metrics"
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    name = f'sax_version_requests_total{{model="{MODEL}",outcome='
    lines = [line.removeprefix(name) for line in page.splitlines() if line.startswith(name)]
    return {label: float(value) for label, _, value in (line.rpartition(" ") for line in lines)}


async def test_answers_and_errors_are_counted_by_version() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(MODEL, version=OLD)
        stream = Stream(served)
        await stream.ask(1, max_tokens=2)
        await stream.ask(2, max_tokens=2)
        await stream.ask(3, "x" * 10_000)  # more than the context holds
        await stream.until_over(1, 2, 3)
        found = await counted(served)
        assert found == {f'"success",version="{OLD}"}}': 2.0, f'"error",version="{OLD}"}}': 1.0}

        await served.load(MODEL, version=NEW)
        assert await counted(served) == {
            f'"success",version="{NEW}"}}': 0.0,
            f'"error",version="{NEW}"}}': 0.0,
        }
