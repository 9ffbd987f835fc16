"""The command line: what is wrong is one clear message and an exit status."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from model_server.plan.precompile.command import main
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.tpu_compiler import needs_compiler

MODEL = ("LmCloudSpmd2BTest", "NUM_LAYERS=1", "MODEL_DIMS=16", "NUM_HEADS=2", "DIMS_PER_HEAD=8")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The command is a process of its own, and sets its environment."""
    with mock.patch.dict(os.environ):
        yield


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return re.sub(r"\s+", " ", capsys.readouterr().err)


@each_case(
    "words, status, message",
    [
        ((*MODEL, "--topology", "cpu:0", "--to", "x"), 2, "write cpu, or cpu:N"),
        ((*MODEL, "--topology", "v9:2x2", "--to", "x"), 2, "no TPU is called 'v9'"),
        ((*MODEL, "--topology", "cpu"), 2, "has no checkpoint to write programs beside"),
        (
            ("no-such-model", "--topology", "cpu", "--to", "x"),
            2,
            "a checkpoint or config.json on this machine",
        ),
        ((*MODEL, "LAYERS=2", "--topology", "cpu", "--to", "x"), 2, "LAYERS"),
        ((*MODEL, "NUM_LAYERS", "--topology", "cpu", "--to", "x"), 2, "write KEY=JSON"),
        (
            (*MODEL, "--topology", "cpu", "--to", "x", "--", "--memory_limit_bytes", "1000000"),
            1,
            "the model does not fit",
        ),
        (("--list", "nowhere"), 1, "nowhere holds no compiled programs"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    words: tuple[str, ...],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == status
    assert message in told(capsys)
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_an_unknown_size_of_a_slice_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main((*MODEL, "--topology", "v5e:3x3", "--to", "x")) == 2
    assert "nearest" in told(capsys)


@each_case(
    "words", [("--topology", "cpu"), ("--topology", "cpu", "--", "--slots", "8"), ("m",), ()]
)
def test_a_command_line_without_a_model_or_a_slice_is_wrong(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "give MODEL and --topology, or --list PLACE" in told(capsys)


def test_a_checkpoint_that_cannot_be_written_beside_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny(tmp_path / "tiny")
    (folder / "sax-programs").write_text("in the way")
    assert main((str(folder), "--topology", "cpu")) == 1
    message = told(capsys)
    assert "sax-programs" in message
    assert "cannot be written" in message
    assert "name another place with --to" in message


def test_several_devices_of_this_machine_are_set_before_jax_reads_them(tmp_path: Path) -> None:
    """A process of its own, in which jax is not imported yet."""
    words = [*MODEL, "--topology", "cpu:2", "--to", str(tmp_path), "--", "--slots", "2"]
    words += ["--kv_cache_bytes", "1000000", "--page_size", "16", "--max_context", "32"]
    command = [sys.executable, "-m", "model_server.precompile", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "start servers with --programs" in done.stderr
    assert main(["--list", str(tmp_path)]) == 0
