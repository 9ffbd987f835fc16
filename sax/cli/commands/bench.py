"""The `bench` command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sax.cli.bench.chart import open_progress, show_report
from sax.cli.bench.load_plan import LoadPlan, RequestSizes, WorkloadKind
from sax.cli.bench.report import (
    as_value,
    draw,
    make_report,
    parse_limits,
)
from sax.cli.failure import INTERRUPTED
from sax.cli.model_argument import OptionalModel
from sax.cli.terminal import admin_of
from sax.command import FAILED, CommandResult, say
from sax.errors import InvalidRequest
from sax.format import quoted

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
