"""The gateway's Prometheus metrics, in their own registry, and those of its process.

Tokens are counted when a request ends, so that counting costs nothing per token. The label `model`
is the full name of a published model, or "" where a request concerns none; when a model is
unpublished, its series go at the next scrape.
"""

from __future__ import annotations

import threading

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

# Buckets from a warm local token to ten minutes of queueing.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models: set[str] = set()  # that are labels
        self._exposing = threading.Lock()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "sax_gateway_requests",
            "Requests answered; code 499: the client disconnected before the reply began.",
            ["route", "model", "code"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "sax_gateway_requests_in_flight", "Requests being served.", registry=self.registry
        )
        self.seconds = Histogram(
            "sax_gateway_request_seconds",
            "Time from arrival to the last byte.",
            ["route", "model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.first_token_seconds = Histogram(
            "sax_gateway_time_to_first_token_seconds",
            "Time from arrival to the first token, streamed or not.",
            ["route", "model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "sax_gateway_prompt_tokens",
            "Prompt tokens processed.",
            ["model"],
            registry=self.registry,
        )
        self.completion_tokens = Counter(
            "sax_gateway_completion_tokens",
            "Tokens generated.",
            ["model"],
            registry=self.registry,
        )
        self.disconnects = Counter(
            "sax_gateway_disconnects",
            "Clients that disconnected before their reply was complete.",
            ["route", "model"],
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "sax_gateway_broken_streams",
            "Streams that ended with an error event after they began.",
            ["route", "model"],
            registry=self.registry,
        )

        self.limited = Counter(
            "sax_gateway_limited_requests",
            "Requests refused because their key was over a limit: rpm, tpm or concurrent.",
            ["limit"],
            registry=self.registry,
        )

    def busy(self) -> bool:
        """True while a request is being served."""
        return any(sample.value > 0 for each in self.in_flight.collect() for sample in each.samples)

    def expose(self, published: frozenset[str]) -> bytes:
        """Return the text for Prometheus. published: the models that may be labels.

        May be called in a thread: with many models it takes longer than a stream may pause.
        """
        with self._exposing:
            gone = self._models - published - {""}
            self._models -= gone
            for metric in self._of_models() if gone else ():
                _forget(metric, gone)
            return generate_latest(self.registry)

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._models.add(model)
        self.requests.labels(route, model, str(status)).inc()
        self.seconds.labels(route, model).observe(seconds)

    def _of_models(self) -> list[Counter | Histogram]:
        counters = [self.requests, self.disconnects, self.broken_streams]
        tokens = [self.prompt_tokens, self.completion_tokens]
        return [*counters, *tokens, self.seconds, self.first_token_seconds]


def _forget(metric: Counter | Histogram, models: set[str]) -> None:
    """Drop the series of models that are no longer published."""
    samples = (sample for family in metric.collect() for sample in family.samples)
    labels = {tuple((k, v) for k, v in each.labels.items() if k != "le") for each in samples}
    for each in labels:
        if dict(each)["model"] in models:
            metric.remove(*(value for _, value in each))
