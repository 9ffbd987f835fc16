"""Show a plan: in a terminal, with the progress of compiling before it, and as a roofline.

The roofline is a picture of FLOP per byte against FLOP per second, one point per bucket; written as
SVG by hand: for one picture of lines and dots a plotting library would be too much.
"""

from __future__ import annotations

import html
import math
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
from model_server.plan.slices import CHIPS
from sax.format import count
from sax.format import human_bytes as human

_COLUMNS = ("temp", "TFLOP", "GB moved", "over least", "MB sent", "ms", "bound by", "compile s")
_NARROWEST = 100  # width without a terminal
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 480, 80, 50, 30, 60
_COLOURS = {"FLOPs": "#b3541e", "HBM": "#1e6fb3", "links": "#6b3fa0"}
_INK, _FAINT = "#222222", "#dddddd"


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


def roofline_svg(plan: ModelPlan) -> str:
    """Draw the picture of a plan whose buckets were compiled."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            *_Picture(plan).drawn(),
            "</svg>",
            "",
        ]
    )


class _Picture:
    def __init__(self, plan: ModelPlan) -> None:
        self._plan = plan
        self._chip = CHIPS[plan.slice.chip]
        xs = [self._chip.ridge, *(each.intensity for each in plan.buckets)]
        ys = [self._chip.device_flops, *(each.rate for each in plan.buckets)]
        self._x = _decades(min(xs) / 2, max(xs) * 4)
        self._y = _decades(min(ys) / 2, max(ys) * 1.5)

    def drawn(self) -> Iterator[str]:
        yield from self._axes()
        yield self._roof()
        for place, bucket in enumerate(self._plan.buckets):
            yield from self._point(bucket, below=place % 2 == 1)
        yield from self._legend()

    def _across(self, value: float) -> float:
        first, last = self._x
        share = (math.log10(value) - first) / (last - first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _up(self, value: float) -> float:
        first, last = self._y
        share = (math.log10(value) - first) / (last - first)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> Iterator[str]:
        title = f"{self._plan.model} on {self._plan.slice.topology}: predicted, per device"
        yield _label(_WIDTH / 2, 24, title, anchor="middle", size=15)
        bottom = _HEIGHT - _BOTTOM
        for power in range(self._x[0], self._x[1] + 1):
            x = self._across(10.0**power)
            yield _stroke(x, _TOP, x, bottom, _FAINT)
            yield _label(x, bottom + 18, _power_of_ten(power), anchor="middle")
        for power in range(self._y[0], self._y[1] + 1):
            y = self._up(10.0**power)
            yield _stroke(_LEFT, y, _WIDTH - _RIGHT, y, _FAINT)
            yield _label(_LEFT - 8, y + 4, _power_of_ten(power), anchor="end")
        yield _label(_WIDTH / 2, _HEIGHT - 18, "FLOP per byte of HBM", anchor="middle")
        turned = f'transform="rotate(-90 20 {_HEIGHT / 2})"'
        yield _label(20, _HEIGHT / 2, "FLOP per second", anchor="middle", more=turned)

    def _roof(self) -> str:
        first, last = (10.0**power for power in self._x)
        rate, peak = self._chip.device_hbm_rate, self._chip.device_flops
        least = 10.0 ** self._y[0]
        start = max(first, least / rate)
        corners = [(start, start * rate), (self._chip.ridge, peak), (last, peak)]
        points = " ".join(f"{self._across(x):.1f},{self._up(y):.1f}" for x, y in corners)
        return f'<polyline points="{points}" fill="none" stroke="{_INK}" stroke-width="2"/>'

    def _point(self, bucket: BucketPlan, *, below: bool) -> Iterator[str]:
        x, y = self._across(bucket.intensity), self._up(bucket.rate)
        name = f"{bucket.decodes}+{bucket.blocks}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_COLOURS[bucket.bound]}">'
            f"<title>{bucket.decodes} decodes + {bucket.blocks} prompt blocks: "
            f"{bucket.intensity:.1f} FLOP/byte, {bucket.rate / 1e12:.2f} TFLOP/s, bound by "
            f"{bucket.bound}</title></circle>"
        )
        yield _label(x + 8, y + (18 if below else 4), name)

    def _legend(self) -> Iterator[str]:
        bounds = [bound for bound in _COLOURS if any(b.bound == bound for b in self._plan.buckets)]
        for place, bound in enumerate(bounds):
            y = _TOP + 14 + 18 * place
            yield f'<circle cx="{_LEFT + 14}" cy="{y}" r="5" fill="{_COLOURS[bound]}"/>'
            yield _label(_LEFT + 26, y + 4, f"bound by {bound}")
        y = _TOP + 18 + 18 * len(bounds)
        yield _label(_LEFT + 10, y + 4, "points: decodes + prompt blocks")


def _decades(least: float, most: float) -> tuple[int, int]:
    return math.floor(math.log10(least)), math.ceil(math.log10(most))


def _power_of_ten(power: int) -> str:
    names = {0: "1", 1: "10", 2: "100", 9: "1 G", 12: "1 T", 15: "1 P"}
    return names.get(power, f"1e{power}")


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _label(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{_INK}" {more}>{html.escape(text)}</text>'
    )
