"""The report of a benchmark: its figures, as a value, as JSON and as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sax.cli.bench.goodput import ServiceLimit, good
from sax.cli.bench.outcome import Outcome
from sax.cli.bench.percentiles import SHOWN, Distribution, distribution
from sax.command import aligned
from sax.format import count

TITLES = {
    "ttft": "time to first token",
    "itl": "between parts (ITL)",
    "tpot": "per token (TPOT)",
    "e2e": "whole answer",
}


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


def as_lines(report: BenchReport) -> Iterator[str]:
    """The report for people, without the plots."""
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
    yield aligned([["ms", "mean", *(f"p{each}" for each in SHOWN), "max"], *_rows(report)])


def _goodput(report: BenchReport) -> Iterator[str]:
    if report.limits:
        told = ", ".join(f"{each.measure} {each.most_ms:g} ms" for each in report.limits)
        share = report.good / report.sent if report.sent else 0.0
        yield (
            f"goodput {report.per_second(report.good):.2f} requests/s: "
            f"{report.good} of {report.sent} ({share:.0%}) within {told}"
        )


def _rows(report: BenchReport) -> Iterator[list[str]]:
    for name, title in TITLES.items():
        if found := _milliseconds(distribution(report.times_s[name])):
            yield [title, *(f"{found[key]:.1f}" for key in found if key != "count")]
