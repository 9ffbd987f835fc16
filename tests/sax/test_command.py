"""What all commands share: messages, overrides, exit statuses, and where commands come from."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Generator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sax.command import (
    CommandLine,
    CommandResult,
    aligned,
    dropped_columns,
    fail,
    parse_overrides,
    printable,
    prints_results,
    run_alone,
    say,
    show_facts,
    show_table,
)
from sax.errors import InvalidRequest

ROOT = Path(__file__).parents[2]
GROUP = "sax.commands"
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
HEAVY = (
    *("jax", "numpy", "yaml", "lightkube", "k8s.render", "model_server.config"),
    # what those ask a cell or draw with: half of the start
    *("grpc", "google.protobuf", "httpx", "rich", "obstore", "opentelemetry", "sax.client"),
)


@given(st.text())
def test_printable_text_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 0x20 and c not in "\n\t" for c in shown)
    assert not any(0x7F <= ord(c) < 0xA0 for c in shown)


def test_ordinary_text_is_left_alone() -> None:
    assert printable("Zürich\t日本\n") == "Zürich\t日本\n"
    assert printable("\x1b[2J") == "\\x1b[2J"


def test_messages_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_an_override_that_is_not_json_is_told_how_to_quote() -> None:
    with pytest.raises(InvalidRequest, match=r"""A='"text"'"""):
        parse_overrides(["A=text"])
    with pytest.raises(InvalidRequest, match="KEY=JSON"):
        parse_overrides(["A"])


def command(text: str) -> CommandResult:
    """Say something."""
    if text == "wrong":
        fail(InvalidRequest("say it properly"), 2)
    if text == "refused":
        raise InvalidRequest("try later")
    if text == "none":
        raise typer.Exit(1)
    return CommandResult({"said": text}, text)


def _error(text: str) -> str:
    return f'{{"error": {{"type": "InvalidRequest", "text": "{text}"}}}}\n'


@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        (["hello"], 0, "hello\n", ""),
        (["--json", "--", "--json"], 0, '{\n  "said": "--json"\n}\n', ""),
        (["--", "--json"], 0, "--json\n", ""),
        (["none"], 1, "", ""),
        (["wrong"], 2, "", "sax: say it properly\n"),
        (["refused"], 1, "", "sax: try later\n"),
        (["--json", "wrong"], 2, _error("say it properly"), ""),
        (["--json", "refused"], 1, _error("try later"), ""),
    ],
)
def test_a_command_runs_alone_and_its_status_comes_back(
    words: list[str], status: int, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_alone(command, "python -m it", words) == status
    assert tuple(capsys.readouterr()) == (out, err)


def test_a_command_that_runs_alone_teaches_and_refuses_under_its_own_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_alone(command, "python -m it", ["--help"]) == 0
    assert "Usage: python -m it [OPTIONS]" in capsys.readouterr().out
    assert run_alone(command, "python -m it", []) == 2
    assert "Usage: python -m it [OPTIONS]" in capsys.readouterr().err


def test_every_entry_point_adds_commands_that_explain_themselves() -> None:
    names: set[str] = set()
    for name, value in DECLARED.items():
        app = CommandLine()
        EntryPoint(name, value, GROUP).load()(app)
        added = typer.main.get_group(app).commands
        assert all(each.help for each in added.values())
        assert CliRunner().invoke(app, ["--help"]).exit_code == 0
        names |= added.keys()
    assert names == {
        "k8s",
        "plan",
        "precompile",
        "convert",
        "inspect",
        "pull",
        "quantize",
        "models",
        "rm",
    }


def test_the_command_line_starts_without_what_its_commands_compute_with() -> None:
    """Its start is felt at every call."""
    script = (
        "import sys, typer, sax.cli.main\n"
        "from importlib.metadata import EntryPoint\n"
        f"for name, value in {DECLARED!r}.items():\n"
        f"    EntryPoint(name, value, {GROUP!r}).load()(typer.Typer())\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_columns_are_two_spaces_apart_without_trailing_blanks() -> None:
    assert aligned([["A", "B"], ["long", ""], ["x", "y"]]) == "A     B\nlong\nx     y"


def test_a_table_in_a_pipe_is_plain_and_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["NAME", "REASON"], [["m", "why " * 100 + "\x1b[31mred\nnext"]])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "REASON"]
    assert row.endswith("\\x1b[31mred next")


class Terminal(io.StringIO):
    """A standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal of 40 columns in place of standard output."""
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    for name, value in (("COLUMNS", "40"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return screen


MODELS = ["MODEL", "PATH", "CHECKPOINT", "STATE", "REASON"]
BROKEN = ["/sax/test/m", "llama", "/a/long/checkpoint.gguf", "failed", "it is cut short"]


def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = narrow_terminal(monkeypatch)
    show_table(MODELS, [BROKEN], ("METRICS", "CHECKPOINT", "PATH"))
    text = re.sub(r"\x1b\[[\d;]*m", "", narrow.getvalue())
    assert max(map(len, text.splitlines())) <= 40
    assert text.split()[:3] == ["MODEL", "STATE", "REASON"]
    assert "not shown: CHECKPOINT, PATH;" in text
    assert dropped_columns([MODELS, BROKEN], ("CHECKPOINT", "PATH"), 200) == ()
    assert dropped_columns([MODELS, BROKEN], ("CHECKPOINT", "PATH"), 50) == ("CHECKPOINT",)


def test_a_failed_model_looks_failed_in_states_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = narrow_terminal(monkeypatch)
    red = "\x1b[1;31mfailed\x1b[0m"
    show_table(["STATE", "REASON"], [["failed", "failed"]])
    show_facts([("state", "failed"), ("note", "failed")])
    assert narrow.getvalue().count(red) == 2
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(["STATE"], [["failed"]])
    assert narrow.getvalue().count(";31m") == 2
    assert narrow.getvalue().count("failed") == 5


def test_results_that_were_held_open_are_closed_when_one_of_them_fails() -> None:
    ended: list[str] = []

    def several() -> Generator[CommandResult]:
        try:
            yield CommandResult(1, "one")
            yield CommandResult(lambda: 1 / 0, lambda: 1 / 0)
        finally:
            ended.append("closed")

    with pytest.raises(ZeroDivisionError):
        prints_results(several)(as_json=False)
    assert ended == ["closed"]
