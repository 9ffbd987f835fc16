"""Progress display: live bars on a terminal, one line per new phase elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sax.cli.stages import ProgressStage
from sax.command import say


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
    from sax.cli.bars import open_bars  # with rich, which lines need not

    with open_bars() as bars:
        yield bars


class PlainDisplay:
    """Prints a line whenever a stage's phase or reason changes, and for each quarter of bytes."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[str, str, int]] = {}

    def show(self, stages: Sequence[ProgressStage]) -> None:
        for stage in stages:
            quarter = 4 * stage.done // stage.total if stage.unit == "bytes" and stage.total else 0
            phase = stage.phase, stage.reason, quarter
            if self._phases.get(stage.name) != phase:
                self._phases[stage.name] = phase
                say(f"{stage.name}: {stage.told}")

    def note(self, text: str) -> None:
        say(text)
