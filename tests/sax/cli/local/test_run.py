"""`sax run` in a cell that is there: publishes what is missing, waits, and asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from sax.cli.main import app
from sax.types import Message, Progress, ReplicaStatus, ServableStatus
from tests.sax.cli.fake_cell import FakeCell

Sax = Callable[..., Result]


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["run", *words, "--admin", cell.address], input=stdin)

    return run


def test_a_checkpoint_is_published_awaited_and_asked_once(cell: FakeCell, sax: Sax) -> None:
    loading = Progress("downloading", 3 << 20, 9 << 20, "bytes")
    cell.script = [ReplicaStatus(cell.address, ServableStatus.LOADING, "", loading), cell.ready]
    done = sax("acme/Tiny", "-p", "say hello", "--system", "be brief", "--set", "QUANTIZE=null")
    assert (done.exit_code, done.stdout) == (0, "SAY HELLO\n"), done.stderr
    assert "downloading 3 of 9 MiB" in done.stderr
    spec = cell.models["/sax/test/tiny"].spec
    assert (spec.checkpoint, spec.model_path) == ("hf://acme/Tiny", "auto")
    assert spec.overrides == {"QUANTIZE": "null"}
    assert cell.asked[0].prompt == (Message("system", "be brief"), Message("user", "say hello"))
    again = sax("acme/Tiny", "-p", "again", "--set", "QUANTIZE=null")
    assert (again.exit_code, again.stdout) == (0, "AGAIN\n")
    assert "published" not in again.stderr


def test_a_piped_text_is_one_question(cell: FakeCell, sax: Sax) -> None:
    cell.holds("/sax/test/m")
    assert sax("m", stdin="first line\nsecond line\n").stdout == "FIRST LINE SECOND LINE\n"
    assert [each.prompt for each in cell.asked] == [(Message("user", "first line\nsecond line\n"),)]


def test_what_is_neither_published_nor_a_checkpoint_is_told(cell: FakeCell, sax: Sax) -> None:
    done = sax("nothing", "-p", "x")
    assert done.exit_code == 1
    assert "no published model, and no checkpoint" in done.stderr
    assert not cell.models


@pytest.mark.extended
def test_a_cell_that_was_named_and_does_not_answer_is_an_error() -> None:
    done = CliRunner().invoke(app, ["run", "m", "-p", "x", "--admin", "127.0.0.1:9"])
    assert done.exit_code == 1
    assert "127.0.0.1:9 does not answer" in done.stderr
