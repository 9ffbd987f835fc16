"""Show the progress of compiling: a bar in a terminal, otherwise a line per bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from model_server.plan.planner import BucketCompiled


@contextmanager
def told(out: TextIO) -> Iterator[Callable[[BucketCompiled], None]]:
    """Yield the callback for every compiled bucket."""
    if out.isatty():
        with _bar(out) as report:
            yield report
    else:
        yield lambda done: _line(out, done)


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
