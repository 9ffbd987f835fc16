"""`sax run` where no cell is: from nothing to an answer in one command, with a model of a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sax.cli.main import app
from tests.demo_model import ROOT
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of every process that starts now, none of which finds a cell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))  # compiled steps are kept there
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("SAX_ADMIN", "SAX_ROOT", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sax.client.location.ADMIN_PORT", 9)  # where no cell answers
    free = {
        f"--{name}port": 0 for name in ("", "admin-", "model-", "status-", "metrics-", "group-")
    }
    monkeypatch.setattr("sax.cli.local.run._PORTS", free)
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def run(*words: str) -> Result:
    done = CliRunner().invoke(app, ["run", *words, "--max-tokens", "16"])
    assert done.exit_code == 0, done.output
    return done


def test_a_tiny_model_is_fetched_and_answers(hub: FakeHub, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny")
    hub.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})
    done = run("acme/tiny", "-p", "hello")
    assert done.stdout
    assert "published /sax/test/tiny" in done.stderr


@pytest.mark.nightly  # with the slots and the context of a user's cell: many programs
def test_the_demo_model_is_fetched_and_knows_its_capitals(hub: FakeHub, gguf: Path) -> None:
    hub.push("acme/SmolLM2-GGUF", {gguf.name: gguf.read_bytes(), "README.md": b""})
    done = run("acme/SmolLM2-GGUF:Q4_1", "-p", "What is the capital of France?")
    assert "Paris" in done.stdout
    assert "published /sax/test/smollm2-gguf" in done.stderr
    assert "downloading" in done.stderr
    assert hub.fetched == [gguf.name]
