"""Charts of a benchmark: what a terminal shows of a run and of its report."""

from __future__ import annotations

import io

from rich.console import Console

from sax.cli.bench.chart import figures, show_report, sparkline, tokens_per_second
from sax.cli.bench.measuring import BenchRun
from sax.cli.bench.report import Outcome, make_report
from tests.sax.cli.bench.test_measuring import Counting, run_of
from tests.sax.test_command import Terminal


def outcome(ended_s: float, tokens: int, error: str = "") -> Outcome:
    pieces = (ended_s - 0.5, ended_s) if not error else ()
    return Outcome(sent_s=ended_s - 1, ended_s=ended_s, pieces_s=pieces, tokens=tokens, error=error)


def run_at(now_s: float, *outcomes: Outcome) -> BenchRun:
    target = Counting()
    run = run_of(target, 10)
    run._began_s = target.now_s  # pyright: ignore[reportPrivateUsage]
    target.now_s += now_s
    run.outcomes = [*outcomes]
    return run


def test_the_tokens_of_each_whole_second_are_counted_the_latest_last() -> None:
    run = run_at(4.5, outcome(0.5, 9), outcome(1.2, 3), outcome(1.9, 4), outcome(3.5, 5))
    assert tokens_per_second(run, 8) == [9, 7, 0, 5]
    assert tokens_per_second(run, 2) == [0, 5]
    assert tokens_per_second(run_at(0.5), 8) == []


def test_values_are_drawn_as_high_as_the_most_of_them() -> None:
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_run_fits_a_terminal_of_forty_columns_and_names_its_errors() -> None:
    run = run_at(3.0, outcome(1.0, 4), outcome(2.0, 4, "the queue is full"))
    screen = Console(file=io.StringIO(), width=40)
    screen.print(figures(run, 40))
    text = screen.file.getvalue()  # pyright: ignore
    assert max(map(len, text.splitlines())) <= 40
    assert "1 error" in text
    assert "2 of 10" in text.replace("\n", " ")


def test_a_report_on_a_narrow_terminal_leaves_out_what_matters_least(monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    subject = {"target": {"ignores_end": True}, "workload": {}}
    show_report(make_report(subject, [outcome(1.0, 4), outcome(2.0, 4)], 0, []), "m: 2 requests")
    text = screen.getvalue()
    assert "2 of 2 requests answered" in text
    assert "p99" in text
    assert "p95" not in text.partition("not shown")[0]
    assert "█" in text
