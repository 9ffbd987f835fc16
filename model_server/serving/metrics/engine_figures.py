"""Figures of each model's engine and batches, read when scraped: a token costs nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from model_server.disaggregation.disaggregation import TransferTotals
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_batches import LoadedBatches
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.serving.lm_servable import LmServable
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
        (Loaded, LoadedEmbedder),
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
