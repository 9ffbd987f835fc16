"""`python -m tests.k8s` tells of each rendering, and fails for one that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.k8s import __main__ as program
from tests.k8s.check import Subject

GOOD, ABSENT = Subject("examples/slice-check"), Subject("overlays/absent")


def run(subjects: list[Subject], out: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(program, "subjects", lambda: subjects)
    monkeypatch.setattr(sys, "argv", ["tests.k8s", "--out", str(out)])
    return program.main()


def test_what_is_good_is_written_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "of-an-earlier-run.yaml").touch()
    assert run([GOOD], tmp_path, monkeypatch) == 0
    assert "ok      examples/slice-check: 2 objects" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["examples-slice-check.yaml"]


def test_what_does_not_render_fails_the_run_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([ABSENT, GOOD], tmp_path, monkeypatch) == 1
    told = capsys.readouterr().out
    assert "FAILED  overlays/absent: it does not render" in told
    assert "ok      examples/slice-check" in told
    assert "2 renderings" in told
