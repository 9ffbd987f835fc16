"""The `bench` command against a cell that answers with the words of the prompt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sax.cli.main import app
from tests.each_case import each_case
from tests.sax.cli.fake_cell import FakeCell

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
