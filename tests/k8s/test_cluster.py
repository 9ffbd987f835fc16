"""Dry runs stay in a namespace of their own: the commands, as a kubectl that only writes them down
would get them."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from tests.k8s import cluster
from tests.k8s.cluster import VARIABLE, dry_run, own_namespace


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of commands; a command with the word `refused` fails."""
    file, program = tmp_path / "told", tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {file}\ncat > /dev/null\n'
        'case "$*" in *refused*) echo "not here" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(cluster, "kubectl", lambda: str(program))
    monkeypatch.setenv(VARIABLE, "/the/kubeconfig")
    return file


def test_a_namespace_is_made_for_them_and_goes(told: Path) -> None:
    with own_namespace() as name, own_namespace() as other:
        assert name != other
        assert dry_run("kind: Pod", name) == ""
    lines = told.read_text().splitlines()
    assert all(line.startswith("--kubeconfig=/the/kubeconfig ") for line in lines)
    words = [line.partition(" ")[2] for line in lines]
    assert words[0] == f"create namespace {name}"
    assert re.fullmatch(rf"--namespace={name} apply --dry-run=server .* -f -", words[2])
    assert words[3:] == [f"delete namespace {each} --wait=false" for each in (other, name)]


def test_what_the_server_says_is_told(told: Path) -> None:
    assert dry_run("", "refused") == "not here"


def test_a_namespace_that_cannot_be_made_ends_them(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/refused")
    with pytest.raises(CalledProcessError), own_namespace():
        pass
