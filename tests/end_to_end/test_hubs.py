"""Models come from a hub: published by their ids, pinned, loaded and asked; or refused at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sax.cli.main import app
from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell, local_plan
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

TINY = "/sax/test/tiny"
ENDS_S = 10.0  # somebody waits for a refusal


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of every process that starts now."""
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield running


def push_tiny(hub: FakeHub, folder: Path) -> str:
    write_tiny(folder)
    return hub.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})


def test_a_model_is_published_by_its_id_and_what_no_hub_gives_is_refused_at_publish(
    hub: FakeHub, tmp_path: Path
) -> None:
    commit = push_tiny(hub, tmp_path / "tiny")
    with Cell(local_plan(tmp_path / "cell", "--slots=2", "--max_context=64")) as cell:
        cell.publish("acme/tiny", model=TINY, model_path="auto")
        assert cell.listed(TINY)["spec"]["checkpoint"] == f"hf://acme/tiny@{commit}"
        assert cell.complete("hello", model=TINY, max_tokens=2).status_code == 200

        body = {"model": "/sax/test/none", "model_path": "auto", "checkpoint": "acme/none"}
        refused = cell.http.post("/publish", json={**body, "replicas": 1})
        assert refused.status_code == 400
        assert "has no acme/none, or it is private" in refused.text

        hub.status = 503
        began = time.monotonic()
        told = cell.sax("publish", "none", "auto", "hf://acme/other", "--wait")
        assert time.monotonic() - began < ENDS_S
        assert told.returncode == 1
        assert "is not reachable from it" in told.stderr
        assert "HF_ENDPOINT" in told.stderr
        assert cell.sax("ls", "none").returncode == 1  # nothing was recorded

        # What is in the cache is loaded again without a hub.
        assert cell.sax("update", "tiny", "--override", "MAX_CONTEXT=32", "--wait").returncode == 0
        assert cell.complete("hello", model=TINY, max_tokens=2).status_code == 200


def test_from_nothing_to_an_answer_in_one_command(
    hub: FakeHub, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/SmolLM2-GGUF", {gguf.name: gguf.read_bytes(), "README.md": b""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))  # compiled steps are kept there
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    monkeypatch.delenv("SAX_ROOT", raising=False)
    monkeypatch.setattr("sax.client.location.ADMIN_PORT", 9)  # where no cell answers
    free = {
        f"--{name}port": 0 for name in ("", "admin-", "model-", "status-", "metrics-", "group-")
    }
    monkeypatch.setattr("sax.cli.local.own_cell._PORTS", free)
    words = ["acme/SmolLM2-GGUF:Q4_1", "-p", "What is the capital of France?", "--max-tokens", "16"]
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output
    assert "Paris" in done.stdout
    assert "published /sax/test/smollm2-gguf" in done.stderr
    assert "downloading" in done.stderr
    assert hub.fetched == [gguf.name]
