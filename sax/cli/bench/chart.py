"""Charts of a benchmark: its figures while it runs on a terminal, and its times at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from sax.cli.bench.report import (
    TIME_HEADINGS,
    TITLES,
    BenchReport,
    as_lines,
    head_lines,
    time_rows,
)
from sax.cli.stages import ProgressStage
from sax.command import printable, show_table
from sax.format import count

if TYPE_CHECKING:
    from sax.cli.bench.measuring import BenchRun

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_TENTHS = 10  # of a run: where the output is no terminal, a line for each
_REFRESH = 4  # times per second: to draw takes time from what is measured
_WIDEST = 40  # columns of a chart
_SHOWN = ("ttft", "itl")  # times whose histograms are drawn


@contextmanager
def open_progress() -> Generator[Callable[[BenchRun], None]]:
    """Show a run while it goes on: charts if stderr is a terminal, a line per tenth otherwise."""
    if not sys.stderr.isatty():
        from sax.cli.display import PlainDisplay

        display = PlainDisplay()
        yield lambda run: display.show([_tenth(run)])
        return
    from rich.console import Console
    from rich.live import Live

    seen: list[BenchRun] = []
    console = Console(stderr=True)

    def drawn() -> Any:
        return figures(seen[-1], console.width) if seen else "asking for the first answer"

    with Live(get_renderable=drawn, console=console, refresh_per_second=_REFRESH, transient=True):
        yield seen.append


def _tenth(run: BenchRun) -> ProgressStage:
    done = len(run.outcomes)
    tenth = done * _TENTHS // run.total
    return ProgressStage("bench", f"{tenth * _TENTHS} % answered:", done, run.total, "requests")


def figures(run: BenchRun, width: int) -> Any:
    """Return what is drawn of a run: how far it is, and its last seconds and answers."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    size = max(8, min(_WIDEST, width - 32))
    failed = sum(bool(each.error) for each in run.outcomes)
    done = f"{len(run.outcomes)} of {run.total}, {run.running} running"
    rates = tokens_per_second(run, size)
    firsts = [1e3 * each.first_s for each in run.outcomes[-size:] if each.first_s is not None]
    grid = Table.grid(padding=(0, 1))
    grid.add_row("answered", ProgressBar(run.total, len(run.outcomes), width=size), done)
    grid.add_row("tokens/s", f"[cyan]{sparkline(rates)}", f"{rates[-1] if rates else 0:.0f}")
    told = f"median {median(firsts):.0f}" if firsts else ""
    grid.add_row("1st token, ms", f"[cyan]{sparkline(firsts)}", told)
    if failed:
        grid.add_row("", "", f"[bold red]{count(failed, 'error')}")
    return grid


def tokens_per_second(run: BenchRun, seconds: int) -> list[float]:
    """Return the tokens of the answers that ended in each whole one of the last seconds."""
    now = math.floor(run.elapsed_s)
    found = [0.0] * min(seconds, now)
    for each in reversed(run.outcomes):  # in the order of their ends
        place = math.floor(each.ended_s) - now + len(found)
        if place < 0:
            break
        if place < len(found):
            found[place] += each.tokens
    return found


def sparkline(values: Sequence[float]) -> str:
    """Draw values as letters of different heights, the most of them as the highest."""
    most = max(values, default=0.0) or 1.0
    return "".join(_HEIGHTS[min(7, math.floor(8 * value / most))] for value in values)


def show_report(report: BenchReport, title: str) -> None:
    """Print a report: on a terminal in its width and colours, plainly elsewhere."""
    if not sys.stdout.isatty():
        sys.stdout.write(printable("\n".join([title, *as_lines(report), *_plots(report)])) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(title), "bold"))
    for line in head_lines(report):
        failed = any(line.endswith(text) for text in report.errors)
        console.print(Text(printable(line), "red" if failed else ""))
    show_table(TIME_HEADINGS, list(time_rows(report)), ("p95", "p90", "mean", "max"))
    for line in _plots(report, max(8, min(_WIDEST, console.width - 24))):
        console.print(Text(line, "cyan" if "█" in line else ""), overflow="crop", no_wrap=True)


def _plots(report: BenchReport, width: int = _WIDEST) -> Iterator[str]:
    if not report.subject["target"]["ignores_end"]:
        yield "the server takes neither ignore_eos nor min_tokens: answers may end early"
    for name in _SHOWN:
        if values := [each * 1e3 for each in report.times_s[name]]:
            yield from ("", f"{TITLES[name]}, ms", *histogram(values, width=width))


def histogram(values: Sequence[float], bars: int = 8, width: int = _WIDEST) -> Iterator[str]:
    """Draw how many values fall into each of `bars` ranges of the same width."""
    if not values:
        return
    low, high = min(values), max(values)
    counts = counted(values, bars)
    step = (high - low) / bars
    edges = [f"{low + step * place:,.1f}" for place in range(bars + 1)]
    column = max(map(len, edges))
    for place, number in enumerate(counts):
        bar = _bar(number / max(counts), width)
        yield f"{edges[place]:>{column}} - {edges[place + 1]:>{column}} {bar:<{width}} {number}"


def counted(values: Sequence[float], bars: int) -> list[int]:
    """Count the values in each of `bars` ranges between the least and the most of them."""
    low, high = min(values), max(values)
    counts = [0] * bars
    for value in values:
        share = (value - low) / (high - low) if high > low else 0.0
        counts[min(bars - 1, math.floor(share * bars))] += 1
    return counts


def _bar(share: float, width: int) -> str:
    eighths = math.ceil(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
