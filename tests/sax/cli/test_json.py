"""Every command takes --json, and prints nothing but JSON with it: results and errors alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from sax.cli.main import app
from sax.types import Event, Version
from tests.each_case import Failures
from tests.sax.cli.fake_cell import FakeCell

MODEL = "/sax/test/m"
# What each command is tried with, in a cell that serves MODEL. A command that is not listed fails
# the test. None: needs more than a fake cell; its errors are tried all the same.
WORDS: Mapping[str, tuple[str, ...] | None] = {
    "publish": ("/sax/test/new", "llama", "None", "--wait"),
    "update": (MODEL, "--replicas", "1", "--wait"),
    "update-checkpoint": (MODEL, "None"),
    "update_checkpoint": (MODEL, "None"),
    **dict.fromkeys(("update-weights", "weights", "pause", "resume", "sleep", "wake")),
    "promote": (MODEL,),
    "abort": (MODEL,),
    "rollback": (MODEL, "2"),
    "unpublish": (MODEL,),
    "versions": (MODEL,),
    "events": (),
    "logs": (),
    "ls": (),
    "status": (),
    "wait": (MODEL,),
    "watch": None,  # until Ctrl-C
    "run": (MODEL, "-p", "hello there"),
    "generate": (MODEL, "hello there"),
    "lm.generate": (MODEL, "hello there"),
    "chat": (MODEL, "hello there"),
    "embed": (MODEL, "a", "abc"),
    "lm.embed": (MODEL, "a", "abc"),
    "rerank": None,
    "classify": None,
    "gradient": None,
    "lm.gradient": None,
    "speak": None,
    "transcribe": None,
    "score": (MODEL, "a", "b"),
    "lm.score": (MODEL, "a", "b"),
    "custom": (MODEL,),
    "bench": (MODEL, "--requests", "2"),
    "doctor": (),
    "token": ("alice",),
    "getacl": (MODEL,),
    "setacl": (MODEL, "alice"),
    "launch": None,
    "saxml-shim": ("{folder}",),
    "up": None,
    "demo": None,
    "create": None,
    "delete": None,
    "export": None,
    "save": None,
    "models": (),
    "clean": ("--dry-run",),
    "rm": None,
    "pull": None,
    "plan": None,
    "precompile": None,
    "convert": None,
    "quantize": None,
    "inspect": None,
    "k8s doctor": None,
    "k8s render": None,
}
# Lines of these may have any option, so that saxutil's own are told that they are not supported.
LOOSE = ("create", "delete", "export", "save")


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        yield running


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its name and its group's."""
    for name, command in (group or typer.main.get_group(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield before + name, command


def values(result: Result) -> list[Any]:
    """Read all of stdout as JSON values, one after another."""
    decoder, text, found = json.JSONDecoder(), result.stdout, []
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_every_command_has_the_option_and_is_tried_here() -> None:
    known = dict(commands())
    assert known.keys() == WORDS.keys()
    without = [
        name
        for name, each in known.items()
        if "--json" not in [o for p in each.params for o in p.opts]
    ]
    assert not without


def test_what_a_command_prints_is_json_and_nothing_else(cell: FakeCell, tmp_path: Path) -> None:
    failures = Failures()
    for name, words in WORDS.items():
        if words is None:
            continue
        cell.holds(MODEL)
        cell.models.pop("/sax/test/new", None)
        cell.versions[MODEL] = [Version(version=each * 32, checkpoint="/c") for each in "12"]
        cell.events = [Event(sequence=1, at_s=1.0, kind="publish", model_id=MODEL)]
        given = [word.format(folder=tmp_path) if word[0] == "{" else word for word in words]
        line = ["--admin", cell.address, name, *given, "--json"]
        with failures.of(name):
            result = CliRunner().invoke(app, line, input="x")
            assert result.exit_code == 0 or name == "doctor", result.output
            assert values(result), result.output
            assert "error" not in values(result)[-1]
    failures.end()


def test_a_wrong_line_is_an_object_too_and_its_exit_status_stays() -> None:
    failures = Failures()
    for name in WORDS:
        with failures.of(name):
            result = CliRunner().invoke(app, [*name.split(), "--json", "--no-such-option"])
            assert result.exit_code == (1 if name in LOOSE else 2)
            (value,) = values(result)
            assert value["error"]["type"] in ("InvalidRequest", "UnsupportedParameter")
            assert value["error"]["text"]
            assert not result.stderr
    failures.end()


def test_an_error_of_the_cell_is_an_object_with_its_type_and_field(cell: FakeCell) -> None:
    result = CliRunner().invoke(app, ["--admin", cell.address, "ls", "/sax/test/m", "--json"])
    (value,) = values(result)
    assert result.exit_code == 1
    assert value["error"]["type"] == "ModelNotFound"
    assert not result.stderr
    wrong = CliRunner().invoke(app, ["setacl", "/sax/test", "a", "--json"])
    (value,) = values(wrong)
    assert value["error"] == {
        "type": "UnsupportedParameter",
        "text": value["error"]["text"],
        "param": "model",
    }


def test_an_error_in_the_midst_follows_what_was_printed(cell: FakeCell) -> None:
    cell.holds(MODEL)
    cell.finish_reason = "length"
    line = ["--admin", cell.address, "chat", MODEL, "--json"]
    answers = values(CliRunner().invoke(app, line, input="one\ntwo words\n"))
    assert [each["text"] for each in answers] == ["ONE", "TWO WORDS"]
    assert answers[0]["finish_reason"] == "length"
    cell.refuses = True
    failed = values(CliRunner().invoke(app, [*line, "x"]))
    assert failed[-1]["error"]["type"] == "QueueFull"


def test_bytes_that_are_no_text_are_base64(cell: FakeCell) -> None:
    cell.holds(MODEL)
    line = ["--admin", cell.address, "custom", MODEL, "--json"]
    assert values(CliRunner().invoke(app, line, input=b"abc")) == [{"text": ":cba"}]
    assert values(CliRunner().invoke(app, line, input=b"\xff")) == [{"base64": "Ov8="}]


def test_a_value_of_another_option_is_not_taken_for_json() -> None:
    result = CliRunner().invoke(app, ["up", "--port", "x", "--", "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
