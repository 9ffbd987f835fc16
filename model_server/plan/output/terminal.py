"""Show a plan in a terminal, and the progress of compiling before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from model_server.plan.model_plan import BucketPlan, DraftPlan, ModelPlan
from model_server.plan.planner import BucketCompiled
from sax.format import count
from sax.format import human_bytes as human

_COLUMNS = ("temp", "TFLOP", "GB moved", "over least", "MB sent", "ms", "bound by", "compile s")
_NARROWEST = 100  # width without a terminal


def show(plan: ModelPlan, console: Console | None = None) -> None:
    out = console or _console()
    _headings(plan, out)
    if plan.memory is not None:
        _memory(plan, out)
    if plan.buckets:
        _buckets(plan, out)
    if plan.decoding:
        _speeds(plan, out)
    if plan.draft is not None:
        _draft(plan.draft, out)
    for note in plan.notes:
        out.print(f"note: {escape(note)}")
    _verdict(plan, out)


@contextmanager
def progress_on(out: TextIO) -> Iterator[Callable[[BucketCompiled], None]]:
    """Yield the callback for every compiled bucket: a bar in a terminal, otherwise lines."""
    if out.isatty():
        with _bar(out) as report:
            yield report
    else:
        yield lambda done: _line(out, done)


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _NARROWEST
    return console


def _headings(plan: ModelPlan, out: Console) -> None:
    where = plan.slice
    mesh = ", ".join(f"{axis} {size}" for axis, size in where.mesh.items() if size > 1) or "1"
    devices = "" if where.devices == where.chips else f", {where.devices} devices"
    out.print(
        f"{escape(_plain(plan.model))}: {plan.parameters / 1e9:.2f} B parameters "
        f"({escape(_plain(plan.path))})"
    )
    out.print(
        f"{where.topology}: {count(where.chips, 'chip')} of {human(where.hbm_per_chip)}{devices}, "
        f"{count(where.hosts, 'host')} with {where.chips_per_host} each; mesh: {mesh}"
    )
    out.print(f"{count(plan.slots, 'slot')}, context {plan.max_context:,} tokens")


def _memory(plan: ModelPlan, out: Console) -> None:
    memory = plan.memory
    assert memory is not None, "the caller looked"
    table = Table(title="Memory per device", box=box.SIMPLE, title_justify="left")
    table.add_column("")
    table.add_column("bytes", justify="right")
    table.add_column("")
    draft = plan.draft
    theirs = f"{human(draft.weights)} of that the draft model's" if draft else ""
    table.add_row("weights", human(memory.weights), theirs)
    pages = f"{memory.kv_pages:,} pages, {memory.kv_tokens:,} tokens"
    if memory.kv_near_pages:
        pages += f"; {memory.kv_near_pages:,} pages of layers with a window"
    if draft:
        pages += f"; {human(draft.kv)} of that the draft model's"
    table.add_row("KV pages", human(memory.kv), pages)
    table.add_row("temporaries", human(memory.temporaries), "of the largest step")
    table.add_row("code", human(memory.code), "of all buckets")
    table.add_row("in all", human(memory.used), f"of {human(memory.limit)} that programs may use")
    free = memory.kv_pages_free * memory.page_size
    table.add_row("KV that would fit", human(memory.kv_free), f"{free:,} tokens")
    out.print(table)


def _buckets(plan: ModelPlan, out: Console) -> None:
    table = Table(
        title=f"Per step and device, {plan.context:,} tokens cached per sequence; time predicted",
        box=box.SIMPLE,
        title_justify="left",
    )
    table.add_column("decodes + blocks")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for bucket in plan.buckets:
        table.add_row(*_bucket_row(bucket))
    out.print(table)


def _bucket_row(bucket: BucketPlan) -> tuple[str, ...]:
    return (
        f"{bucket.decodes} + {bucket.blocks}",
        human(bucket.temporaries),
        f"{max(bucket.flops, bucket.flops_compiled) / 1e12:.3f}",
        f"{max(bucket.bytes, bucket.bytes_compiled) / 1e9:.2f}",
        f"{bucket.efficiency:.2f}x",
        f"{sum(bucket.sent.values()) / 1e6:.1f}",
        f"{bucket.seconds * 1e3:.2f}",
        bucket.bound,
        f"{bucket.compile_seconds:.0f}",
    )


def _speeds(plan: ModelPlan, out: Console) -> None:
    table = Table(
        title="Predicted from the roofline: the best case, not measured",
        box=box.SIMPLE,
        title_justify="left",
    )
    for name in ("batch", "cached each", "tokens/s", "per chip", "ms a token", "longest context"):
        table.add_column(name, justify="right")
    for each in plan.decoding:
        table.add_row(
            str(each.batch),
            f"{each.context:,}",
            f"{each.tokens_per_second:,.0f}",
            f"{each.per_chip:,.1f}",
            f"{each.seconds * 1e3:.2f}",
            f"{each.longest:,}",
        )
    out.print(table)
    firsts = ", ".join(
        f"{each.seconds * 1e3:,.1f} ms ({each.prompt:,} tokens)" for each in plan.first_token
    )
    out.print(f"predicted time to first token: {firsts}")


def _draft(draft: DraftPlan, out: Console) -> None:
    draft_tokens = ", ".join(
        f"{each.seconds * 1e3:,.2f} ms ({each.rows})" for each in draft.draft_tokens
    )
    out.print(
        f"draft model {escape(_plain(draft.model))}: {draft.parameters / 1e9:.2f} B parameters; "
        "it computes every step, too; predicted for one draft token (of so many sequences): "
        f"{draft_tokens}"
    )


def _verdict(plan: ModelPlan, out: Console) -> None:
    if plan.fits:
        out.print(f"it fits {plan.slice.topology} (planned in {plan.planning_seconds:.0f} s)")
        return
    out.print(escape(_plain(plan.problem or "")))
    if plan.advice:
        out.print("it would fit with one of these changes:")
    for advice in plan.advice:
        out.print(f"  {escape(advice)}")


def _plain(text: str) -> str:
    """Replace control characters: names come from users and files, and terminals obey escapes."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _line(out: TextIO, done: BucketCompiled) -> None:
    out.write(
        f"{done.topology}: compiled {done.bucket} in {done.seconds:.1f} s "
        f"({done.number} of {done.of})\n"
    )
    out.flush()


@contextmanager
def _bar(out: TextIO) -> Iterator[Callable[[BucketCompiled], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=out)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("planning", total=None)

        def report(done: BucketCompiled) -> None:
            progress.update(
                task,
                description=f"{done.topology}: compiled {done.bucket}",
                completed=done.number,
                total=done.of,
            )

        yield report
