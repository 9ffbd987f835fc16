"""Progress bars of a terminal, with rich."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from sax.cli.stages import ProgressStage
from sax.command import printable
from sax.format import human_bytes

_NARROW = 70  # columns, below which there are no bars


@contextmanager
def open_bars() -> Generator[BarDisplay]:
    """Show bars on stderr."""
    console = Console(stderr=True)
    narrow = console.width < _NARROW
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[name]}", markup=False),
        *(() if narrow else (BarColumn(bar_width=24),)),
        StageColumn(),
        *(() if narrow else (TimeElapsedColumn(),)),
    )
    with Progress(*columns, console=console) as progress:
        yield BarDisplay(progress)


class StageColumn(ProgressColumn):
    """The phase and count of a stage; of bytes also how fast they come, and how long they will."""

    def render(self, task: Task) -> Text:
        text = Text(task.fields["text"], "bold red" if task.fields["failed"] else "")
        speed: float = task.fields["speed"]
        if task.fields["unit"] == "bytes" and speed and task.remaining:
            left = timedelta(seconds=math.ceil(task.remaining / speed))
            text.append(f", {human_bytes(int(speed))}/s, {left} left")
        return text


class BarDisplay:
    """Shows a bar per stage, which pulses while the total is unknown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[tuple[str, str], tuple[float, int]] = {}  # when a phase did, and at what

    def show(self, stages: Sequence[ProgressStage]) -> None:
        for stage in stages:
            self._show(stage)

    def note(self, text: str) -> None:
        self._progress.console.print(Text(printable(text)))

    def _show(self, stage: ProgressStage) -> None:
        shown: dict[str, Any] = {
            "name": printable(stage.name),
            "text": printable(stage.told),
            "unit": stage.unit,
            "failed": stage.phase == "failed",
            "speed": self._speed(stage),
        }
        task = self._tasks.get(stage.name)
        if task is None:
            task = self._tasks[stage.name] = self._progress.add_task("", total=None, **shown)
        ready = stage.phase == "ready"
        self._progress.update(
            task,
            total=1 if ready else (stage.total or None),
            completed=1 if ready else stage.done,
            **shown,
        )

    def _speed(self, stage: ProgressStage) -> float:
        """Return how much is done per second in the stage's phase; 0: not known yet."""
        now = time.monotonic()
        began_s, before = self._began.setdefault((stage.name, stage.phase), (now, stage.done))
        return (stage.done - before) / (now - began_s) if now > began_s else 0.0
