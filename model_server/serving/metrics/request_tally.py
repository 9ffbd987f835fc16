"""RequestTally: times and sizes of one model's requests, and how they ended, since the start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BucketCounts:
    """Counts values in buckets. Fed by one thread; read by any, a value late at most.

    A histogram of prometheus_client takes a lock and four calls per value; this one a bisection.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """bounds: the highest value of each bucket, ascending; one without bound follows."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as Prometheus writes it, with the number of values up to it."""
        names = (*map(floatToGoString, self._bounds), "+Inf")
        return [(name, float(n)) for name, n in zip(names, accumulate(self._counts), strict=True)]


_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30, 60)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
_PHASE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))

# The attribute of a tally, its metric and help text.
_DISTRIBUTIONS = (
    (
        "first_token",
        "sax_time_to_first_token_seconds",
        "From the request's arrival to its first token",
    ),
    (
        "interval",
        "sax_inter_token_latency_seconds",
        "From each token of an answer to the next, as the device computed them",
    ),
    (
        "per_token",
        "sax_time_per_output_token_seconds",
        "Mean time between the tokens of one answer",
    ),
    (
        "queue",
        "sax_request_queue_seconds",
        "From the request's arrival to its first slot",
    ),
    (
        "prefill",
        "sax_request_prefill_seconds",
        "From the request's first slot to its first token",
    ),
    (
        "decode",
        "sax_request_decode_seconds",
        "From the first token of an answer to its last",
    ),
    (
        "computing",
        "sax_request_inference_seconds",
        "From the request's first slot to the last token of its answer",
    ),
    (
        "whole",
        "sax_request_seconds",
        "From the request's arrival to the end of its answer",
    ),
    ("prompt_tokens", "sax_request_prompt_tokens", "Tokens of a request's prompt"),
    ("answer_tokens", "sax_request_generated_tokens", "Tokens of a request's answer"),
    ("max_tokens", "sax_request_max_tokens", "Tokens that a request allowed"),
)


class RequestTally:
    """Fed on the event loop."""

    def __init__(self) -> None:
        self.first_token = BucketCounts(_FIRST_TOKEN_S)
        self.interval = BucketCounts(_PER_TOKEN_S)
        self.per_token = BucketCounts(_PER_TOKEN_S)
        self.queue = BucketCounts(_PHASE_S)
        self.prefill = BucketCounts(_PHASE_S)
        self.decode = BucketCounts(_PHASE_S)
        self.computing = BucketCounts(_PHASE_S)
        self.whole = BucketCounts(_PHASE_S)
        self.prompt_tokens = BucketCounts(_TOKENS)
        self.answer_tokens = BucketCounts(_TOKENS)
        self.max_tokens = BucketCounts(_TOKENS)
        # By reason: stop, length, score, cancelled, error, refused.
        self.ended = Counter[str]()
        # Answers whose grammar held a part of their schema, by verdict: kept, broken, unchecked.
        self.checked = Counter[str]()


class RequestTallies(Collector):
    """The tally of each model that was ever asked."""

    def __init__(self) -> None:
        self._tallies: dict[str, RequestTally] = {}

    def of(self, model_id: str) -> RequestTally:
        return self._tallies.setdefault(model_id, RequestTally())

    def collect(self) -> Iterable[Metric]:
        tallies = dict(self._tallies)
        for attribute, name, text in _DISTRIBUTIONS:
            yield _histogram(name, text, tallies, lambda tally, a=attribute: getattr(tally, a))
        yield _counter(
            "sax_requests_ended",
            "Requests that ended, by how: stop, length, score, cancelled, error, refused",
            "reason",
            {model: tally.ended for model, tally in tallies.items()},
        )
        yield _counter(
            "sax_answers_checked",
            "Finished answers whose grammar held only a part of their schema, by what a check of "
            "the whole found: kept, broken, unchecked",
            "verdict",
            {model: tally.checked for model, tally in tallies.items()},
        )


def _counter(
    name: str, text: str, label: str, counts: Mapping[str, Counter[str]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["model", label])
    for model_id, counted in counts.items():
        for value, count in sorted(counted.copy().items()):
            family.add_metric([model_id, value], count)
    return family


def _histogram(
    name: str,
    text: str,
    tallies: Mapping[str, RequestTally],
    choose: Callable[[RequestTally], BucketCounts],
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["model"])
    for model_id, tally in tallies.items():
        chosen = choose(tally)
        family.add_metric([model_id], chosen.buckets(), chosen.sum)
    return family
