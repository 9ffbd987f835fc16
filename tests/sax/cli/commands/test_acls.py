"""The commands token, getacl and setacl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sax.auth.acl import Principal
from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import TokenFile
from sax.cli.main import app
from tests.each_case import each_case
from tests.sax.cli.fake_cell import FakeCell

MODEL = "/sax/test/m"
Sax = Callable[..., Result]


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds(MODEL)
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    return lambda *words: CliRunner().invoke(app, ["--admin", cell.address, *words])


def test_a_token_is_told_once_and_its_line_lets_its_owner_in(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["token", "alice"])
    assert made.exit_code == 0
    file = tmp_path / "tokens"
    file.write_text(made.stderr)
    secret = made.stdout.strip()
    assert secret not in made.stderr
    assert TokenFile(file).find(secret) == Principal("alice")


def test_limits_become_options_of_the_line(tmp_path: Path) -> None:
    options = ["--rpm", "60", "--tpm", "1000", "--concurrent", "4", "--models", "/sax/prod/*,llama"]
    made = CliRunner().invoke(app, ["token", "alice", *options])
    assert made.exit_code == 0
    assert made.stderr.endswith(" rpm=60 tpm=1000 concurrent=4 models=/sax/prod/*,llama\n")
    file = tmp_path / "tokens"
    file.write_text(made.stderr)
    limits = KeyLimits(60, 1000, 4, ("/sax/prod/*", "llama"))
    assert TokenFile(file).find(made.stdout.strip()) == Principal("alice", limits)


def test_a_limit_that_no_line_could_have_makes_no_token() -> None:
    for options in (["--models", "a b"], ["--rpm", "9999999999"], ["--tpm", "-1"]):
        refused = CliRunner().invoke(app, ["token", "alice", *options])
        assert (refused.exit_code != 0, refused.stdout) == (True, "")


def test_a_token_for_a_name_that_is_none_is_not_made() -> None:
    refused = CliRunner().invoke(app, ["token", "a b"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "not a principal name" in refused.stderr


def test_lists_are_set_one_by_one_and_shown(cell: FakeCell, sax: Sax) -> None:
    assert sax("setacl", MODEL, "lm.generate", "alice,bob").exit_code == 0
    assert sax("setacl", MODEL, "all", "carol").exit_code == 0
    assert sax("setacl", MODEL, "dan").exit_code == 0
    spec = cell.models[MODEL].spec
    assert dict(spec.acls) == {"lm.generate": "alice,bob", "*": "carol"}
    assert spec.admin_acl == "dan"
    assert sax("getacl", MODEL).stdout == "dan\n"
    assert sax("getacl", MODEL, "lm.generate").stdout == "alice,bob\n"
    assert sax("getacl", MODEL, "all").stdout == "* carol\nlm.generate alice,bob\n"


def test_an_empty_list_is_taken_away(cell: FakeCell, sax: Sax) -> None:
    sax("setacl", MODEL, "lm.generate", "alice")
    assert sax("setacl", MODEL, "lm.generate", "").exit_code == 0
    assert dict(cell.models[MODEL].spec.acls) == {}
    assert sax("getacl", MODEL, "lm.generate").stdout == "\n"


@pytest.mark.extended
@each_case(
    "words, says",
    [
        (["setacl", MODEL, "lm.genrate", "alice"], "lm.generate_stream"),
        (["setacl", MODEL, "lm.generate", "a b"], "not a principal name"),
        (["setacl", MODEL, "lm.generate", "alice", "bob"], "names with commas"),
        (["setacl", "/sax/test", "alice"], "--admin_acl"),
        (["getacl", "/sax/test"], "--admin_acl"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    words: list[str], says: str, cell: FakeCell, sax: Sax
) -> None:
    before = cell.models[MODEL]
    refused = sax(*words)
    assert refused.exit_code != 0
    assert says in refused.stderr
    assert cell.models[MODEL] == before
