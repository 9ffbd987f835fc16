"""The `bench` command against a cell that answers with the words of the prompt."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from sax.cli.bench.measuring import BenchRun
from sax.cli.bench.report import Outcome, make_report
from sax.cli.commands.bench import figures, show_report, sparkline, tokens_per_second
from sax.cli.main import app
from tests.each_case import each_case
from tests.sax.cli.bench.test_measuring import Counting, run_of
from tests.sax.cli.fake_cell import FakeCell
from tests.sax.test_command import Terminal

Sax = Callable[..., Result]
SMALL = ("--requests", "5", "--prompt-tokens", "4")


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds("/sax/test/m")
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["--admin", cell.address, "bench", *words])

    return run


def test_a_model_of_a_cell_is_measured_and_told_as_json(cell: FakeCell, sax: Sax) -> None:
    result = sax("m", *SMALL, "--seed", "3", "--tokens", "9", "--slo", "e2e:60000", "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["requests"]["answered"] == 5
    assert value["goodput"]["share"] == 1.0
    assert value["target"]["model"] == "/sax/test/m"
    assert value["workload"]["seed"] == 3
    assert value["e2e_ms"]["count"] == 5
    asked = cell.asked[1:]  # the first warms up
    assert {request.sampling.max_tokens for request in asked} == {9}
    assert all(request.sampling.ignore_eos for request in asked)
    assert {len(str(request.prompt).split()) for request in asked} == {4}


def test_the_report_is_text_with_plots_and_a_picture(sax: Sax, tmp_path: Path) -> None:
    picture = tmp_path / "race.svg"
    result = sax("m", *SMALL, "--rate", "1000", "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "5 of 5 requests answered" in result.stdout
    assert "time to first token, ms" in result.stdout
    assert picture.read_text().startswith("<svg")


def test_a_trace_is_sent(cell: FakeCell, sax: Sax, tmp_path: Path) -> None:
    trace = tmp_path / "calls.jsonl"
    trace.write_text('{"timestamp": 5, "prompt": "hello there", "output_length": 2}\n')
    assert sax("m", "--trace", str(trace)).exit_code == 0
    assert cell.asked[-1].prompt == "hello there"


def test_errors_are_counted_and_a_run_of_nothing_else_fails(cell: FakeCell, sax: Sax) -> None:
    cell.holds("/sax/test/full")
    result = sax("full", *SMALL)
    assert result.exit_code == 1
    assert "the queue is full" in result.stderr


@pytest.mark.extended
def test_ctrl_c_reports_what_there_is(cell: FakeCell) -> None:
    cell.stops_after = 1  # "Hello" is answered, and no prompt of four words ever is
    command = [sys.executable, "-m", "sax.cli", "--admin", cell.address, "bench", "m", *SMALL]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        while len(cell.asked) < 6 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "0 of 5 requests answered" in told
    assert "5 not finished" in told


@pytest.mark.extended
@each_case(
    "words, told",
    [
        ((), "--url"),
        (("m", "--model", "x"), "--model goes with --url"),
        (("m", "--url", "http://127.0.0.1:1"), "--model"),
        (("m", "--speed", "2"), "--speed has no effect"),
        (("m", "--prefixes", "2"), "--prefixes has no effect"),
        (("m", "--trace", "x.jsonl", "--rate", "2"), "--rate has no effect"),
        (("m", "--trace", "/none/x.jsonl"), "cannot be read"),
        (("m", "--slo", "speed:1"), "ttft, itl, tpot, e2e"),
        (("none",), "no published model"),
        (("--url", "http://127.0.0.1:1", "--model", "x"), "http://127.0.0.1:1"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    words: tuple[str, ...], told: str, sax: Sax
) -> None:
    result = sax(*words)
    assert result.exit_code == 1
    assert told in result.stderr


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
