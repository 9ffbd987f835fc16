"""vLLM's names for our metrics, so that dashboards, autoscalers and benchmarks made for it read a
model server unchanged.

The same figures, rendered under the other name when scraped: nothing is counted twice. Names are
those of vLLM 0.32; `OLDER` are earlier ones, which it has dropped or is about to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

# Families as a collector names them: those of counters without `_total`.
NAMES = (
    ("sax_requests_running", "vllm:num_requests_running"),
    ("sax_requests_waiting", "vllm:num_requests_waiting"),
    ("sax_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
    ("sax_kv_cache_info", "vllm:cache_config_info"),
    ("sax_prefix_cache_queries", "vllm:prefix_cache_queries"),
    ("sax_prefix_cache_hits", "vllm:prefix_cache_hits"),
    ("sax_preemptions", "vllm:num_preemptions"),
    ("sax_prompt_tokens", "vllm:prompt_tokens"),
    ("sax_generated_tokens", "vllm:generation_tokens"),
    ("sax_spec_proposed_tokens", "vllm:spec_decode_num_draft_tokens"),
    ("sax_spec_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
    ("sax_requests_ended", "vllm:request_success"),
    ("sax_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("sax_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    ("sax_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"),
    ("sax_request_queue_seconds", "vllm:request_queue_time_seconds"),
    ("sax_request_prefill_seconds", "vllm:request_prefill_time_seconds"),
    ("sax_request_decode_seconds", "vllm:request_decode_time_seconds"),
    ("sax_request_inference_seconds", "vllm:request_inference_time_seconds"),
    ("sax_request_seconds", "vllm:e2e_request_latency_seconds"),
    ("sax_request_prompt_tokens", "vllm:request_prompt_tokens"),
    ("sax_request_generated_tokens", "vllm:request_generation_tokens"),
    ("sax_request_max_tokens", "vllm:request_params_max_tokens"),
)
OLDER = (
    ("sax_kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc"),
    ("sax_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
_LABELS = {
    "model": "model_name",
    "reason": "finished_reason",
    "page_size": "block_size",
    "pages": "num_gpu_blocks",
}
# vLLM knows no others: a score is none of its requests, and what it refuses it does not count.
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


class WithVllmNames(Collector):
    """Other collectors' metrics, then those of them that vLLM has, under its names."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterable[Metric]:
        ours = [metric for each in self._collectors for metric in each.collect()]
        yield from ours
        by_name = {metric.name: metric for metric in ours}
        for name, theirs in (*NAMES, *OLDER):
            yield renamed(by_name[name], theirs)


def renamed(metric: Metric, name: str) -> Metric:
    """Return a metric under another name, with vLLM's labels."""
    other = Metric(name, metric.documentation, metric.type)
    other.samples = list(_samples(metric, name))
    return other


def _samples(metric: Metric, name: str) -> Iterator[Sample]:
    for sample in metric.samples:
        labels = {_LABELS.get(label, label): value for label, value in sample.labels.items()}
        if (reason := labels.get("finished_reason")) is not None:
            if reason not in _REASONS:
                continue
            labels["finished_reason"] = _REASONS[reason]
        ending = sample.name.removeprefix(metric.name)
        yield Sample(f"{name}{ending}", labels, sample.value)
