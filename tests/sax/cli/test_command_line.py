"""A line of `sax` is answered by its command alone, as the whole command line would."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.main import get_command, get_group

from sax.cli.command_line import COMMANDS, alone, command_line
from sax.cli.main import app
from tests.each_case import each_case


def said(group: Any, name: str) -> str:
    context = typer.Context(group, info_name="sax")
    command = group.get_command(context, name)
    return command.get_help(typer.Context(command, info_name=name, parent=context))


@pytest.mark.extended
def test_a_command_alone_is_the_one_of_the_whole_command_line() -> None:
    whole = get_group(app)
    assert "Usage: sax ls" in said(whole, "ls")
    assert [name for name in whole.commands if name in COMMANDS] == [*COMMANDS]
    different = [
        name
        for name in COMMANDS
        if said(get_command(command_line(name)), name) != said(whole, name)
    ]
    assert different == []


@each_case(
    "line, command",
    [
        ("ls", "ls"),
        ("--admin 10.0.0.1:10000 publish m llama None", "publish"),
        ("--admin=10.0.0.1:10000 update-weights --help", "update-weights"),
        ("chat m --version", "chat"),
        ("", None),
        ("--help", None),
        ("--version ls", None),
        ("--admin", None),
        ("--show-completion", None),
        ("doctor", None),  # asks other packages
        ("plan m", None),  # of another package
        ("lst", None),  # the help names what is near
        ("update_checkpoint m", None),
    ],
)
def test_a_line_that_needs_to_know_others_loads_all(line: str, command: str | None) -> None:
    assert alone(line.split()) == command


def test_completion_in_a_shell_knows_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SAX_COMPLETE", "complete_bash")
    assert alone(["ls"]) is None


def test_a_line_loads_its_own_command_and_none_that_asks() -> None:
    script = (
        "import sys\nfrom sax.cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    words = (sys.executable, "-c", script, "ls", "--help")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = {*done.stdout.splitlines()[-1].split()}
    assert {"sax.cli.commands.listing", "typer"} <= loaded
    strange = {"grpc", "google", "httpx", "rich", "asyncio", "sax.client", "sax.cli.main", "jax"}
    others = {f"sax.cli.{home}" for home in COMMANDS.values()} - {"sax.cli.commands.listing"}
    assert loaded & (strange | others) == set()
