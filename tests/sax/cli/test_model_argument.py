"""Models are named in whole or by their last part, after every command and wherever --admin is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from sax.cli.failure import admin_first
from sax.cli.main import app
from sax.cli.model_argument import full_name
from sax.errors import InvalidName, ModelNotFound
from tests.sax.cli.fake_cell import FakeCell

Sax = Callable[..., Result]
KNOWN = ["/sax/test/smollm2", "/sax/test/gemma", "/sax/lab/gemma"]


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds("/sax/lab/smollm2")
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    return lambda *words: CliRunner().invoke(app, [*words, "--admin", cell.address])


def test_the_last_part_of_a_name_is_enough_if_it_is_the_only_one() -> None:
    assert full_name(KNOWN, "smollm2") == "/sax/test/smollm2"
    assert full_name(KNOWN, "/sax/lab/gemma") == "/sax/lab/gemma"
    assert full_name(KNOWN, "/sax/test/new") == "/sax/test/new"  # the admin server judges it
    with pytest.raises(InvalidName, match="'gemma' may be /sax/lab/gemma, /sax/test/gemma"):
        full_name(KNOWN, "gemma")
    with pytest.raises(ModelNotFound, match="'smol'; the nearest names are /sax/test/smollm2"):
        full_name(KNOWN, "smol")


@pytest.mark.extended
def test_every_command_takes_a_short_name(cell: FakeCell, sax: Sax) -> None:
    assert sax("generate", "smollm2", "say hello").stdout == "SAY HELLO\n"
    assert cell.asked[0].model_id == "/sax/lab/smollm2"
    assert "/sax/lab/smollm2" in sax("ls", "smollm2").stdout
    assert sax("update", "smollm2", "--replicas", "2").stdout == "updated /sax/lab/smollm2\n"
    assert sax("publish", "other", "llama", "/c").stdout == "published /sax/lab/other\n"
    assert sax("unpublish", "smollm2").exit_code == 0
    gone = sax("generate", "smollm2", "x")
    assert gone.exit_code == 1
    assert "no published model is called 'smollm2'" in gone.stderr


def test_the_address_of_a_cell_may_stand_anywhere_but_behind_two_dashes() -> None:
    assert admin_first(["ls", "--admin", "a:1", "x"]) == ["--admin", "a:1", "ls", "x"]
    assert admin_first(["ls", "--admin=a:1"]) == ["--admin=a:1", "ls"]
    assert admin_first(["--admin", "a:1", "ls"]) == ["--admin", "a:1", "ls"]
    assert admin_first(["up", "--", "--admin", "a:1"]) == ["up", "--", "--admin", "a:1"]
    assert admin_first(["ls", "--admin"]) == ["--admin", "ls"]  # which says what it lacks


def complete(line: str, admin: str) -> list[str]:
    """What a shell shows for a line that ends here."""
    environ = {
        **os.environ,
        "_SAX_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "SAX_ADMIN": admin,
    }
    done = subprocess.run(
        [sys.executable, "-m", "sax.cli"], env=environ, capture_output=True, text=True
    )
    return done.stdout.split()


@pytest.mark.extended
def test_a_shell_completes_models_from_the_cell(cell: FakeCell) -> None:
    cell.holds("/sax/lab/small")
    cell.holds("/sax/lab/gemma")
    assert complete("sax chat sm", cell.address) == ["small", "smollm2"]
    assert complete("sax chat /sax/lab/g", cell.address) == ["/sax/lab/gemma"]
    assert "chat" in complete("sax ch", cell.address)
    assert complete("sax chat sm", "127.0.0.1:9") == []  # no cell: nothing, and no error


@pytest.mark.extended
def test_without_a_cell_a_command_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    monkeypatch.delenv("SAX_ROOT", raising=False)
    monkeypatch.setattr("sax.client.location.ADMIN_PORT", 9)  # where nobody listens
    told = CliRunner().invoke(app, ["ls"])
    assert told.exit_code == 1
    assert "`sax up`" in told.stderr
    assert "`sax run MODEL`" in told.stderr
    named = CliRunner().invoke(app, ["ls", "--admin", "127.0.0.1:9"])
    assert "sax up" not in named.stderr
