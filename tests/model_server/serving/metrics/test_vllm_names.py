"""vLLM's names give the same figures as ours."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from model_server.serving.metrics.registry import NAMES, OLDER, ModelServerMetrics

MODEL = "/sax/test/m"


def metrics(*, vllm_names: bool = True) -> ModelServerMetrics:
    made = ModelServerMetrics(lambda: (), lambda: 0, vllm_names=vllm_names)
    tally = made.tally(MODEL)
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
    assert theirs.samples[0].labels == {"model_name": MODEL, "le": "0.001"}


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
