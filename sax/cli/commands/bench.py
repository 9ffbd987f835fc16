"""The `bench` command, and its charts: figures while it runs on a terminal, times at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sax.cli.bench.load_plan import LoadPlan, RequestSizes, WorkloadKind
from sax.cli.bench.report import (
    TIME_HEADINGS,
    TITLES,
    BenchReport,
    as_lines,
    as_value,
    draw,
    head_lines,
    make_report,
    parse_limits,
    time_rows,
)
from sax.cli.failure import INTERRUPTED
from sax.cli.model_argument import OptionalModel
from sax.cli.stages import ProgressStage
from sax.cli.terminal import admin_of
from sax.command import FAILED, CommandResult, printable, say, show_table
from sax.errors import InvalidRequest
from sax.format import count, quoted

if TYPE_CHECKING:
    from sax.cli.bench.measuring import BenchRun

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask this server with OpenAI's API, instead of a cell."),
]
Served = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Model at --url.", show_default="its only one"),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Send chats; otherwise prompts to be continued.")
]
Workload = Annotated[
    WorkloadKind, typer.Option(help="Prompts with nothing in common, or with a shared beginning.")
]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Send the requests of this trace (JSON lines) instead."),
]
Speed = Annotated[
    float, typer.Option(min=0.001, help="Send a trace so many times as fast as it was recorded.")
]
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests to send.", show_default="64, or all of a trace"),
]
Rate = Annotated[
    float | None,
    typer.Option(min=0.001, help="Requests per second on average, at random times (Poisson)."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Requests at once, at most.", show_default="8; with times: any"),
]
PromptTokens = Annotated[
    int, typer.Option(min=1, help="Tokens of a prompt, about; shared ones not counted.")
]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
Spread = Annotated[
    float, typer.Option(min=0, max=1, help="Prompts and answers vary in length by this share.")
]
SharedTokens = Annotated[
    int, typer.Option(min=1, help="Tokens of the shared beginning of shared-prefix.")
]
Prefixes = Annotated[int, typer.Option(min=1, help="Different shared beginnings of shared-prefix.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same requests.")]
Slo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIME:MS",
        help="Limit of a good answer, in milliseconds: ttft (its first token), itl (its longest "
        "pause), tpot (its mean per token) or e2e (the whole). Repeatable.",
    ),
]
AnswerTimeout = Annotated[float, typer.Option(min=0.1, help="Seconds for a whole answer.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="OPENAI_API_KEY", metavar="KEY", help="Key for --url.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Draw the times into this file.")
]
_OF_PREFIXES = ("shared_tokens", "prefixes")
_OF_TRACES = ("speed",)
_NOT_OF_TRACES = ("workload", "rate", "prompt_tokens", "tokens", "spread", *_OF_PREFIXES)


def bench(
    ctx: typer.Context,
    model: OptionalModel = None,
    url: Url = None,
    served: Served = None,
    chat: Chat = False,
    workload: Workload = WorkloadKind.RANDOM,
    trace: Trace = None,
    speed: Speed = 1.0,
    requests: Requests = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    prompt_tokens: PromptTokens = 128,
    tokens: Tokens = 64,
    spread: Spread = 0.0,
    shared_tokens: SharedTokens = 1000,
    prefixes: Prefixes = 1,
    seed: Seed = 0,
    slo: Slo = None,
    timeout: AnswerTimeout = 600.0,
    api_key: ApiKey = None,
    plot: Plot = None,
) -> CommandResult:
    """Measure a model under load.

    Sends requests to a model of a cell, or to any server with OpenAI's API, and reports the time
    to the first token, between the parts of an answer, per token and to its end, tokens per second
    in and out, errors, and goodput: the answers within the limits of --slo. Answers are greedy and
    have exactly --tokens tokens, if the server can be told so. Ctrl-C reports what there is.

    \b
    Examples:
      sax bench smollm2
      sax bench smollm2 --rate 4 --requests 200 --slo ttft:500 --slo itl:50
      sax bench smollm2 --workload shared-prefix --shared-tokens 1000 --prompt-tokens 32
      sax bench smollm2 --trace calls.jsonl --speed 2 --json > figures.json
      sax bench --url http://127.0.0.1:8000 --model my-model --concurrency 32 --plot race.svg
    """
    from sax.cli.bench.measuring import TargetChoice, measure

    _check_effect(ctx, workload, trace)
    limits = parse_limits(slo or ())
    sizes = RequestSizes(
        prompt=prompt_tokens, tokens=tokens, shared=shared_tokens, prefixes=prefixes, spread=spread
    )
    plan = LoadPlan(
        kind=workload, sizes=sizes, count=requests, rate=rate, at_once=concurrency, seed=seed,
        trace=trace, speed=speed,
    )  # fmt: skip
    name = _model(model, url, served)
    choice = TargetChoice(name, url, admin_of(ctx), chat, api_key, timeout)
    with open_progress() as progress:
        run = measure(choice, plan.requests(), plan.concurrency, progress)
    subject = {"target": run.target.subject, "workload": plan.as_value()}
    report = make_report(subject, run.outcomes, run.running, limits)
    title = f"{run.target.subject['model']}: {plan.text}"
    if plot is not None:
        _save(plot, draw(report, title))
    status = INTERRUPTED if run.stopped else 0 if report.answered else FAILED
    return CommandResult(as_value(report), partial(show_report, report, title), status)


def _check_effect(ctx: typer.Context, workload: WorkloadKind, trace: Path | None) -> None:
    """Refuse options that change nothing of this load."""
    if trace is not None:
        idle, why = _NOT_OF_TRACES, "a trace has its own sizes and times"
    else:
        shares = workload is WorkloadKind.SHARED_PREFIX
        idle = (*_OF_TRACES, *(() if shares else _OF_PREFIXES))
        why = "give --trace" if shares else "give --trace, or --workload shared-prefix"
    for name in idle:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = name.replace("_", "-")
            raise InvalidRequest(f"--{flag} has no effect here: {why}", param=flag)


def _model(model: str | None, url: str | None, served: str | None) -> str | None:
    if url is None:
        if served is not None:
            raise InvalidRequest(f"--model goes with --url: write `sax bench {served}`")
        if model is None:
            raise InvalidRequest(
                "name a model of the cell, as in `sax bench smollm2`, or a server with --url"
            )
        return model
    if model is not None:
        raise InvalidRequest("with --url, name its model with --model, or none if it has only one")
    return served


def _save(path: Path, picture: str) -> None:
    try:
        path.write_text(picture)
    except OSError as error:
        say(f"sax: {quoted(str(path))} cannot be written: {error.strerror}")


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
