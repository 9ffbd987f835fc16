"""The commands that change weights in place, and that pause a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sax.cli.main import app
from tests.sax.cli.fake_cell import FakeCell
from tests.sax.cli.test_main import MODEL


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds(MODEL)
        yield running


def test_each_command_asks_for_its_change_and_says_that_it_was_made(
    cell: FakeCell, tmp_path: Path
) -> None:
    here = str(tmp_path)
    cases = {
        ("update-weights", MODEL, here, "--partial", "--mode", "keep", "--expected", "6"): (
            ("update", here, "keep", True, "6"),
            f"{MODEL} has weights of version 7\n",
        ),
        ("update-weights", MODEL, "shm:x", "--weights-version", "7", "--json"): (
            ("update", "shm:x", "wait", False, ""),
            json.dumps({"model": MODEL, "version": "7"}, indent=2) + "\n",
        ),
        ("pause", MODEL): (("pause", "", "wait", False, ""), f"paused {MODEL}\n"),
        ("resume", MODEL): (("resume", "", "wait", False, ""), f"resumed {MODEL}\n"),
        ("sleep", MODEL, "--mode", "recompute"): (
            ("sleep", "", "recompute", False, ""),
            f"{MODEL} sleeps\n",
        ),
        ("wake", MODEL): (("wake", "", "wait", False, ""), f"{MODEL} is awake\n"),
        ("weights", MODEL): (("status", "", "wait", False, ""), "10.0.0.1:1  7  serving\n"),
    }
    for words, (wanted, said) in cases.items():
        result = CliRunner().invoke(app, ["--admin", cell.address, *words])
        assert (result.exit_code, result.stdout) == (0, said), words
        change = cell.weight_changes.pop()
        asked = (change.action, change.source, change.pausing, change.partial, change.expected)
        assert asked == wanted, words
