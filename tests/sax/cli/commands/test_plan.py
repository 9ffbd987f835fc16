"""The command `plan`: hands words to the model server's program, and its status back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from sax.cli.main import app


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands that were run, in place of running them."""
    commands: list[Any] = []

    def note(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append((command, options))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", note)
    return commands


def test_every_word_reaches_the_program_and_its_status_comes_back(run: list[Any]) -> None:
    words = ["Llama-3-8B", "--topology", "v5e:2x4", "--set", 'QUANTIZE="int8"', "--set", "A=1"]
    more = ["--slots", "8", "--max-context", "512", "--kv_cache_bytes", "9", "--full", "--json"]
    assert CliRunner().invoke(app, ["plan", *words, *more]).exit_code == 1
    ((command, options),) = run
    assert command == [
        sys.executable,
        "-m",
        "model_server.plan",
        "--topology=v5e:2x4",
        "--slots=8",
        "--max_context=512",
        "--kv_cache_bytes=9",
        '--set=QUANTIZE="int8"',
        "--set=A=1",
        "--full",
        "--json",
        "--",
        "Llama-3-8B",
    ]
    assert options["env"]["JAX_PLATFORMS"] == "cpu"


def test_a_name_that_looks_like_an_option_stays_a_name(run: list[Any]) -> None:
    CliRunner().invoke(app, ["plan", "--topology", "auto", "--", "--json"])
    assert run[0][0][-2:] == ["--", "--json"]


def test_without_a_slice_the_command_is_not_run(run: list[Any]) -> None:
    assert CliRunner().invoke(app, ["plan", "Llama-3-8B"]).exit_code == 2
    assert not run


def test_its_help_teaches_by_examples() -> None:
    text = CliRunner().invoke(app, ["plan", "--help"]).output
    assert "sax plan lm_cloud.LmCloudSpmd175B32Test --topology v5e:4x8" in text
    assert "Exit status: 0 fits, 1 does not fit" in " ".join(text.split())
