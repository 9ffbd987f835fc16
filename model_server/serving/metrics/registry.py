"""ModelServerMetrics: what a scraper of a model server reads.

Metrics have vLLM's names too, so that dashboards, autoscalers and benchmarks made for it read a
model server unchanged: the same figures, rendered under the other name when scraped. Names are
those of vLLM 0.32; `OLDER` are earlier ones, which it has dropped or is about to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from model_server.disaggregation.disaggregation import TransferTotals
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_batches import LoadedBatches
from model_server.loading.passes.loaded_passes import LoadedEmbedder, LoadedTokens
from model_server.serving.lm_servable import LmServable
from model_server.serving.metrics.request_tally import RequestTallies, RequestTally
from model_server.serving.servable import Servable

# Metric name, help text, reader, and the kinds of model that have it.
Figure = tuple[str, str, Callable[[Any], float], tuple[type, ...]]
_LM = (Loaded,)
_BATCHED = (LoadedBatches,)
_ALL = (*_LM, *_BATCHED)
_GAUGES: tuple[Figure, ...] = (
    ("sax_slots", "Rows of the decode batch", lambda s: s.stats().slots, _LM),
    ("sax_slots_used", "Rows with a sequence", lambda s: s.stats().slots_used, _LM),
    ("sax_pages", "KV pages in the pool", lambda s: s.stats().pages, _LM),
    ("sax_pages_used", "KV pages granted to sequences", lambda s: s.stats().pages_used, _LM),
    (
        "sax_kv_cache_usage_ratio",
        "Share of KV pages in use",
        lambda s: _usage(s),
        _LM,
    ),
    (
        "sax_pages_cached",
        "Free KV pages that requests which begin alike can still use",
        lambda s: s.stats().pages_cached,
        _LM,
    ),
    ("sax_requests_running", "Requests being computed", lambda s: s.running, _ALL),
    ("sax_requests_waiting", "Requests in the queue", lambda s: s.waiting, _ALL),
    (
        "sax_kv_pages_offered",
        "Pages waiting for another server to fetch them",
        lambda s: s.loaded.disaggregation.outgoing.used.pages if s.loaded.disaggregation else 0,
        _LM,
    ),
    ("sax_memory_bytes", "Weights, KV pages and workspace", lambda s: s.memory, _ALL),
)
_COUNTERS: tuple[Figure, ...] = (
    ("sax_steps", "Device steps launched", lambda s: s.stats().steps, _LM),
    (
        "sax_prompt_tokens",
        "Tokens of accepted prompts",
        lambda s: s.prompt_tokens,
        (Loaded, LoadedEmbedder, LoadedTokens),
    ),
    ("sax_generated_tokens", "Tokens generated", lambda s: s.stats().tokens, _LM),
    (
        "sax_prefix_cache_queries",
        "Tokens looked up in the prefix cache",
        lambda s: s.stats().prefix_queries,
        _LM,
    ),
    (
        "sax_prefix_cache_hits",
        "Tokens found in the prefix cache, which need not be computed",
        lambda s: s.stats().prefix_hits,
        _LM,
    ),
    (
        "sax_prefix_cache_evictions",
        "Cached pages given to other tokens",
        lambda s: s.stats().prefix_evictions,
        _LM,
    ),
    (
        "sax_spec_proposed_tokens",
        "Draft tokens computed, before they were known to be the answer's",
        lambda s: s.stats().draft_tokens,
        _LM,
    ),
    (
        "sax_spec_accepted_tokens",
        "Draft tokens that were the answer's",
        lambda s: s.stats().draft_tokens_accepted,
        _LM,
    ),
    (
        "sax_preemptions",
        "Sequences preempted because pages ran out",
        lambda s: s.stats().preemptions,
        _LM,
    ),
    (
        "sax_answers_resumed",
        "Answers that other replicas began and this one went on with",
        lambda s: s.resumed,
        _LM,
    ),
    (
        "sax_answers_unclosed",
        "Constrained answers that went on without a known way to their end",
        lambda s: s.loaded.grammars.counts.unclosed if s.loaded.grammars else 0,
        _LM,
    ),
    (
        "sax_masks_late",
        "Rows left out of a step because the mask of their grammar was not there yet",
        lambda s: s.loaded.grammars.counts.late if s.loaded.grammars else 0,
        _LM,
    ),
    (
        "sax_prompts_fetched",
        "Prompts whose keys and values came from a prefill server",
        lambda s: _moved(s).fetched,
        _LM,
    ),
    (
        "sax_prompts_computed_here",
        "Prompts computed here because a prefill server could not",
        lambda s: _moved(s).computed_here,
        _LM,
    ),
    (
        "sax_kv_fetched_bytes",
        "Keys and values fetched from prefill servers",
        lambda s: _moved(s).fetched_bytes,
        _LM,
    ),
    (
        "sax_kv_fetch_seconds",
        "Time spent fetching keys and values from prefill servers",
        lambda s: _moved(s).fetch_s,
        _LM,
    ),
    (
        "sax_prompts_offered",
        "Prompts computed for other servers",
        lambda s: _moved(s).offered,
        _LM,
    ),
    (
        "sax_kv_expired",
        "Prompts computed for other servers that nobody fetched in time",
        lambda s: _moved(s).expired,
        _LM,
    ),
    ("sax_batches", "Batches computed", lambda s: s.batches, _BATCHED),
    ("sax_requests_cancelled", "Requests whose caller went away", lambda s: s.cancelled, _ALL),
)
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


class ModelServerMetrics:
    """The registry of a model server, and the tallies that its requests feed."""

    def __init__(
        self,
        servables: Callable[[], Iterable[Servable]],
        compiles_while_serving: Callable[[], int],
        *,
        vllm_names: bool = True,
    ) -> None:
        self._tallies = RequestTallies()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        ours = (EngineFigures(servables, compiles_while_serving), self._tallies)
        for each in (WithVllmNames(ours),) if vllm_names else ours:
            self.registry.register(each)

    def tally(self, model_id: str) -> RequestTally:
        """Return what the requests of a model are counted in."""
        return self._tallies.of(model_id)


def _usage(servable: LmServable) -> float:
    stats = servable.stats()
    return stats.pages_used / stats.pages if stats.pages else 0.0


def _moved(servable: LmServable) -> TransferTotals:
    disaggregation = servable.loaded.disaggregation
    return disaggregation.moved if disaggregation else TransferTotals()


class EngineFigures(Collector):
    """Figures of the models that are in memory now."""

    def __init__(
        self, servables: Callable[[], Iterable[Servable]], compiles_while_serving: Callable[[], int]
    ) -> None:
        self._servables = servables
        self._compiles_while_serving = compiles_while_serving

    def collect(self) -> Iterable[Metric]:
        servables = list(self._servables())
        for figures, family in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, text, figure, kinds in figures:
                metric = family(name, text, labels=["model"])
                for servable in servables:
                    if isinstance(servable.loaded, kinds):
                        metric.add_metric([servable.model_id], figure(servable))
                yield metric
        yield _kv_cache_info(each for each in servables if isinstance(each, LmServable))
        yield CounterMetricFamily(
            "sax_compiles_while_serving",
            "Programs compiled after a model was LOADED; anything above 0 is a bug",
            value=self._compiles_while_serving(),
        )


def _kv_cache_info(servables: Iterable[LmServable]) -> Metric:
    """Return sizes that do not change while a model is loaded, as labels of a 1."""
    info = GaugeMetricFamily(
        "sax_kv_cache_info",
        "Tokens of a KV page and pages in the pool, as labels",
        labels=["model", "page_size", "pages"],
    )
    for each in servables:
        limits = each.loaded.runner.limits
        info.add_metric([each.model_id, str(limits.page_size), str(limits.pages)], 1)
    return info


class VersionRequests(Collector):
    """Read when scraped. `version_of` returns the loaded version of a model id."""

    def __init__(
        self, servables: Callable[[], Iterable[Servable]], version_of: Callable[[str], str]
    ) -> None:
        self._servables = servables
        self._version_of = version_of

    def collect(self) -> Iterable[Metric]:
        metric = CounterMetricFamily(
            "sax_version_requests",
            "Requests answered since this version was loaded, by outcome; without those whose "
            "caller went away",
            labels=["model", "version", "outcome"],
        )
        for servable in self._servables():
            labels, methods = self._labels(servable), servable.methods.values()
            metric.add_metric([*labels, "success"], sum(each.succeeded for each in methods))
            metric.add_metric([*labels, "error"], sum(each.failed for each in methods))
        yield metric

    def _labels(self, servable: Servable) -> tuple[str, str]:
        return servable.model_id, self._version_of(servable.model_id)


class WithVllmNames(Collector):
    """Other collectors' metrics, then those of them that vLLM has, under its names."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterable[Metric]:
        ours = [metric for each in self._collectors for metric in each.collect()]
        yield from ours
        by_name = {metric.name: metric for metric in ours}
        for name, theirs in (*NAMES, *OLDER):
            yield _renamed(by_name[name], theirs)


def _renamed(metric: Metric, name: str) -> Metric:
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
