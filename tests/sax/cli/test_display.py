"""Progress of a wait: bars with rate and remaining time, or lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from sax.cli.bars import BarDisplay, StageColumn
from sax.cli.display import PlainDisplay
from sax.cli.stages import ProgressStage

MIB = 1 << 20


def drawn(monkeypatch: pytest.MonkeyPatch, *stages: tuple[float, ProgressStage]) -> str:
    """What a terminal shows after these stages, each at its second."""
    screen = io.StringIO()
    console = Console(file=screen, width=100, force_terminal=True, color_system="standard")
    progress = Progress(StageColumn(), console=console, auto_refresh=False)
    display = BarDisplay(progress)
    for at_s, stage in stages:
        monkeypatch.setattr("sax.cli.bars.time.monotonic", lambda at_s=at_s: at_s)
        display.show([stage])
    console.print(progress.get_renderable())
    return screen.getvalue()


def test_bytes_are_shown_with_their_rate_and_what_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ProgressStage("m", "downloading", 0, 100 * MIB, "bytes")
    later = ProgressStage("m", "downloading", 20 * MIB, 100 * MIB, "bytes")
    text = drawn(monkeypatch, (10.0, begun), (12.0, later))
    assert "downloading 20 of 100 MiB, 10.00 MiB/s, 0:00:08 left" in text
    # Another phase has a rate of its own, and other things than bytes have none.
    assert "/s" not in drawn(
        monkeypatch, (10.0, later), (12.0, ProgressStage("m", "reading", 1, 9, "bytes"))
    )
    steps = [(1.0, ProgressStage("m", "x", 1, 9)), (2.0, ProgressStage("m", "x", 2, 9))]
    assert "left" not in drawn(monkeypatch, *steps)


def test_a_failed_stage_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31mfailed" in drawn(monkeypatch, (1.0, ProgressStage("m", "failed")))


def test_lines_come_with_each_phase_and_each_quarter_of_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = PlainDisplay()
    for done in (0, 10, 20, 30, 60, 70):
        display.show([ProgressStage("m", "downloading", done * MIB, 100 * MIB, "bytes")])
    display.show([ProgressStage("m", "ready")])
    assert capsys.readouterr().err.splitlines() == [
        "m: downloading 0 of 100 MiB",
        "m: downloading 30 of 100 MiB",
        "m: downloading 60 of 100 MiB",
        "m: ready",
    ]
