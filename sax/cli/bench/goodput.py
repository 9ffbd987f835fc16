"""Goodput: the answers that came within given limits, which are what a user has of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sax.cli.bench.outcome import Outcome
from sax.errors import InvalidRequest
from sax.format import quoted

# Name -> seconds of one answer; None if it has no such time, which then holds no limit up.
MEASURES: dict[str, Callable[[Outcome], float | None]] = {
    "ttft": lambda outcome: outcome.first_s,
    "itl": lambda outcome: max(outcome.gaps_s, default=None),
    "tpot": lambda outcome: outcome.per_token_s,
    "e2e": lambda outcome: outcome.whole_s,
}


@dataclass(frozen=True, slots=True)
class ServiceLimit:
    """A limit to one of MEASURES."""

    measure: str
    most_ms: float

    def holds(self, outcome: Outcome) -> bool:
        seconds = MEASURES[self.measure](outcome)
        return seconds is None or seconds * 1e3 <= self.most_ms


def parse_limits(words: Iterable[str]) -> list[ServiceLimit]:
    """Parse words such as ttft:500. Raises InvalidRequest naming the wrong word."""
    return [_parse(word) for word in words]


def _parse(word: str) -> ServiceLimit:
    measure, _, number = word.partition(":")
    try:
        limit = ServiceLimit(measure, float(number))
    except ValueError:
        limit = None
    if limit is None or measure not in MEASURES or not 0 < limit.most_ms < float("inf"):
        names = ", ".join(MEASURES)
        raise InvalidRequest(
            f"--slo {quoted(word)}: give one of {names} and milliseconds, as in ttft:500",
            param="slo",
        )
    return limit


def good(outcomes: Iterable[Outcome], limits: Sequence[ServiceLimit]) -> list[Outcome]:
    """Return the whole answers that held every limit."""
    return [
        each for each in outcomes if not each.error and all(limit.holds(each) for limit in limits)
    ]
