"""Progress display: live bars on a terminal, one line per new phase elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from sax.cli.stages import ProgressStage
from sax.command import printable, say


class Display(Protocol):
    """Shows the progress of a wait."""

    def show(self, stages: Sequence[ProgressStage]) -> None:
        """Replace what is shown for the stages with these names."""
        ...

    def note(self, text: str) -> None: ...


@contextmanager
def open_display() -> Generator[Display]:
    """Show bars if stderr is a terminal, plain lines otherwise."""
    if not sys.stderr.isatty():
        yield PlainDisplay()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[name]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield BarDisplay(progress)


class PlainDisplay:
    """Prints a line whenever a stage's phase or reason changes."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[str, str]] = {}

    def show(self, stages: Sequence[ProgressStage]) -> None:
        for stage in stages:
            phase = stage.phase, stage.reason
            if self._phases.get(stage.name) != phase:
                self._phases[stage.name] = phase
                say(f"{stage.name}: {stage.told}")

    def note(self, text: str) -> None:
        say(text)


class BarDisplay:
    """Shows a bar per stage, which pulses while the total is unknown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, stages: Sequence[ProgressStage]) -> None:
        for stage in stages:
            self._show(stage)

    def note(self, text: str) -> None:
        self._progress.console.print(Text(printable(text)))

    def _show(self, stage: ProgressStage) -> None:
        name, text = printable(stage.name), printable(stage.told)
        if stage.name not in self._tasks:
            self._tasks[stage.name] = self._progress.add_task("", total=None, name=name, text=text)
        ready = stage.phase == "ready"
        self._progress.update(
            self._tasks[stage.name],
            total=1 if ready else (stage.total or None),
            completed=1 if ready else stage.done,
            name=name,
            text=text,
        )
