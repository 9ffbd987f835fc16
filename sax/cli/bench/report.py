"""The report of a benchmark: outcomes and figures, as a value, JSON, lines of text and a picture.

Goodput is the share of answers that came within given limits, which is what a user has of a server.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from typing import Any

from sax.command import aligned
from sax.errors import InvalidRequest
from sax.format import count, quoted

TITLES = {
    "ttft": "time to first token",
    "itl": "between parts (ITL)",
    "tpot": "per token (TPOT)",
    "e2e": "whole answer",
}
_WIDTH, _HEIGHT, _MARGIN = 420, 250, 46
_TOP = 64  # of the panels
_STEPS = 200  # points of a curve
_STYLE = """
  text { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
  .name { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .back { fill: #ffffff; }
  .grid { stroke: #d0d7de; }
  .curve { stroke: #0969da; stroke-width: 2; fill: none; }
  .limit { stroke: #cf222e; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .name { fill: #f0f6fc; }
    .back { fill: #0d1117; }
    .grid { stroke: #3d444d; }
    .curve { stroke: #4493f8; }
    .limit { stroke: #f85149; }
  }
"""
SHOWN = (50, 90, 95, 99)
# Name -> seconds of one answer; None if it has no such time, which then holds no limit up.
_MEASURES: dict[str, Callable[[Outcome], float | None]] = {
    "ttft": lambda outcome: outcome.first_s,
    "itl": lambda outcome: max(outcome.gaps_s, default=None),
    "tpot": lambda outcome: outcome.per_token_s,
    "e2e": lambda outcome: outcome.whole_s,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times are in seconds after the start of the benchmark."""

    sent_s: float
    ended_s: float
    pieces_s: tuple[float, ...] = ()  # arrivals of the parts of the answer, a token or more each
    prompt_tokens: int = 0
    tokens: int = 0  # of the answer
    wanted: int = 0  # tokens that were asked for
    error: str = ""  # "": a whole answer

    @property
    def first_s(self) -> float | None:
        """Time to the first token."""
        return self.pieces_s[0] - self.sent_s if self.pieces_s else None

    @property
    def whole_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between parts of the answer, as a reader sees them."""
        return [later - earlier for earlier, later in pairwise(self.pieces_s)]

    @property
    def per_token_s(self) -> float | None:
        """The mean time per token after the first part; None for a single token."""
        if self.tokens < 2 or len(self.pieces_s) < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class ServiceLimit:
    """A limit to one of MEASURES."""

    measure: str
    most_ms: float

    def holds(self, outcome: Outcome) -> bool:
        seconds = _MEASURES[self.measure](outcome)
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
    if limit is None or measure not in _MEASURES or not 0 < limit.most_ms < float("inf"):
        names = ", ".join(_MEASURES)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Figures of one run; rates count whole answers only."""

    subject: dict[str, Any]  # whom it was asked of, and what
    sent: int
    unfinished: int  # still being answered when the run was stopped
    errors: dict[str, int]  # text -> requests
    short: int  # answers with fewer tokens than were asked for
    seconds: float  # from the first request to the last answer
    times_s: dict[str, list[float]]  # by the names of TITLES
    prompt_tokens: int
    tokens: int
    limits: Sequence[ServiceLimit]
    good: int  # answers that held all limits

    @property
    def answered(self) -> int:
        return self.sent - self.unfinished - sum(self.errors.values())

    def per_second(self, number: int) -> float:
        return number / self.seconds if self.seconds > 0 else 0.0


def make_report(
    subject: dict[str, Any],
    outcomes: Sequence[Outcome],
    unfinished: int,
    limits: Sequence[ServiceLimit],
) -> BenchReport:
    whole = [each for each in outcomes if not each.error]
    begin = min((each.sent_s for each in outcomes), default=0.0)
    end = max((each.ended_s for each in outcomes), default=begin)
    return BenchReport(
        subject=subject,
        sent=len(outcomes) + unfinished,
        unfinished=unfinished,
        errors=dict(Counter(each.error for each in outcomes if each.error)),
        short=sum(each.tokens < each.wanted for each in whole),
        seconds=end - begin,
        times_s=_times(whole),
        prompt_tokens=sum(each.prompt_tokens for each in whole),
        tokens=sum(each.tokens for each in whole),
        limits=limits,
        good=len(good(whole, limits)),
    )


def _times(whole: Sequence[Outcome]) -> dict[str, list[float]]:
    return {
        "ttft": [each.first_s for each in whole if each.first_s is not None],
        "itl": [gap for each in whole for gap in each.gaps_s],
        "tpot": [each.per_token_s for each in whole if each.per_token_s is not None],
        "e2e": [each.whole_s for each in whole],
    }


def as_value(report: BenchReport) -> dict[str, Any]:
    """The report for programs; times are in milliseconds."""
    value: dict[str, Any] = {
        **report.subject,
        "seconds": report.seconds,
        "requests": {
            "sent": report.sent,
            "answered": report.answered,
            "unfinished": report.unfinished,
            "failed": sum(report.errors.values()),
            "short": report.short,
            "per_second": report.per_second(report.answered),
        },
        "errors": report.errors,
        "input_tokens": report.prompt_tokens,
        "output_tokens": report.tokens,
        "input_tokens_per_s": report.per_second(report.prompt_tokens),
        "output_tokens_per_s": report.per_second(report.tokens),
    }
    for name, values in report.times_s.items():
        value[f"{name}_ms"] = _milliseconds(distribution(values))
    if report.limits:
        value["goodput"] = {
            "limits": [asdict(limit) for limit in report.limits],
            "requests": report.good,
            "share": report.good / report.sent if report.sent else 0.0,
            "per_second": report.per_second(report.good),
        }
    return value


def _milliseconds(found: Distribution | None) -> dict[str, float] | None:
    if found is None:
        return None
    shown = {f"p{percent}": each * 1e3 for percent, each in found.percentiles.items()}
    return {"count": found.count, "mean": found.mean * 1e3, **shown, "max": found.most * 1e3}


TIME_HEADINGS = ("ms", "mean", *(f"p{each}" for each in SHOWN), "max")


def as_lines(report: BenchReport) -> Iterator[str]:
    """The report for people, without the plots."""
    yield from head_lines(report)
    yield aligned([TIME_HEADINGS, *time_rows(report)])


def head_lines(report: BenchReport) -> Iterator[str]:
    """What was answered and how fast, without the times."""
    failed = sum(report.errors.values())
    left = f", {report.unfinished} not finished" if report.unfinished else ""
    yield (
        f"{report.answered} of {count(report.sent, 'request')} answered in {report.seconds:.2f} s, "
        f"{count(failed, 'error')}{left}"
    )
    yield from (f"  {times} x {text}" for text, times in report.errors.items())
    if report.short:
        yield f"  {count(report.short, 'answer')} ended before the tokens that were asked for"
    yield (
        f"requests/s {report.per_second(report.answered):.2f}   "
        f"tokens/s in {report.per_second(report.prompt_tokens):.1f}   "
        f"out {report.per_second(report.tokens):.1f}"
    )
    yield from _goodput(report)


def _goodput(report: BenchReport) -> Iterator[str]:
    if report.limits:
        told = ", ".join(f"{each.measure} {each.most_ms:g} ms" for each in report.limits)
        share = report.good / report.sent if report.sent else 0.0
        yield (
            f"goodput {report.per_second(report.good):.2f} requests/s: "
            f"{report.good} of {report.sent} ({share:.0%}) within {told}"
        )


def time_rows(report: BenchReport) -> Iterator[list[str]]:
    for name, title in TITLES.items():
        if found := _milliseconds(distribution(report.times_s[name])):
            yield [title, *(f"{found[key]:.1f}" for key in found if key != "count")]


def draw(report: BenchReport, title: str) -> str:
    """Draw a panel with a curve for each kind of time that was measured, two in a row."""
    shown = [name for name in TITLES if report.times_s[name]]
    rows = -(-len(shown) // 2)
    lines = [*_head(title, max(1, rows))]
    for place, name in enumerate(shown):
        x, y = place % 2 * _WIDTH, _TOP + place // 2 * _HEIGHT
        lines.append(f'<g transform="translate({x} {y})">')
        limits = [each.most_ms for each in report.limits if each.measure == name]
        lines += _panel(TITLES[name], [1e3 * each for each in report.times_s[name]], limits)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>\n"])


def _head(title: str, rows: int) -> Iterator[str]:
    width, height = 2 * _WIDTH, _TOP + rows * _HEIGHT
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield f'<rect class="back" width="{width}" height="{height}" rx="8"/>'
    yield f'<text class="name" x="20" y="28">{escape(title)}</text>'
    yield '<text x="20" y="48">share of the measured times that is at most so many ms</text>'


def _panel(title: str, values_ms: Sequence[float], limits_ms: Sequence[float]) -> Iterator[str]:
    ordered = sorted(values_ms)
    most = max(ordered[-1], *limits_ms, 1e-9) * 1.02
    yield f'<text class="name" x="{_MARGIN}" y="12">{escape(title)}</text>'
    for share in (0.0, 0.5, 0.9, 1.0):
        y = _y(share)
        yield f'<line class="grid" x1="{_MARGIN}" x2="{_WIDTH - 20}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_MARGIN - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>'
    for part in (0.0, 0.5, 1.0):
        x = _x(part)
        yield f'<text x="{x}" y="{_y(0) + 16}" text-anchor="middle">{most * part:.4g}</text>'
    points = (
        f"{_x(percentile(ordered, 100 * step / _STEPS) / most)},{_y(step / _STEPS)}"
        for step in range(_STEPS + 1)
    )
    yield f'<polyline class="curve" points="{" ".join(points)}"/>'
    for limit in limits_ms:
        x = _x(limit / most)
        yield f'<line class="limit" x1="{x}" x2="{x}" y1="{_y(0)}" y2="{_y(1)}"/>'


def _x(share: float) -> float:
    return round(_MARGIN + (_WIDTH - 20 - _MARGIN) * share, 1)


def _y(share: float) -> float:
    return round(20 + (_HEIGHT - 60) * (1 - share), 1)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, mean and percentiles of many times, in their unit."""

    count: int
    mean: float
    percentiles: dict[int, float]
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in ascending order, between neighbours by linear interpolation.

    Raises ValueError without a value.
    """
    if not ordered:
        raise ValueError("there is no percentile of no values")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Sequence[float]) -> Distribution | None:
    """Describe values in any order; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    shown = {percent: percentile(ordered, percent) for percent in SHOWN}
    mean = math.fsum(ordered) / len(ordered)
    return Distribution(len(ordered), mean, shown, ordered[-1])
