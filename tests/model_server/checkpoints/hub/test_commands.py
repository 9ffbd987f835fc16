"""What was fetched is listed and removed, through the commands that people type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model_server.checkpoints.hub.fake_hub import FakeHub

Run = Callable[..., "subprocess.CompletedProcess[str]"]
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"w" * 4096}


@pytest.fixture
def sax(hub: FakeHub, tmp_path: Path) -> Run:
    environ = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    environ.pop("HF_HUB_CACHE", None)

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sax.cli", *words],
            env={**environ, **more},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.mark.extended
def test_what_was_pulled_is_listed_and_removed(hub: FakeHub, sax: Run) -> None:
    commit = hub.push("acme/tiny", FILES)
    pulled = sax("pull", "acme/tiny")
    assert pulled.returncode == 0, pulled.stderr
    (listed,) = json.loads(sax("models", "--json").stdout)
    assert (listed["id"], listed["revision"]) == ("hf://acme/tiny", commit)
    assert (listed["names"], listed["format"]) == (["main"], "safetensors")
    assert sax("rm", "acme/tiny").returncode == 1, "nobody answers the question"
    removed = sax("rm", f"acme/tiny@{commit[:8]}", "--yes")
    assert removed.stdout.startswith(f"removed acme/tiny@{commit[:8]}: 1 revision, ")
    assert not Path(pulled.stdout.strip()).exists()


@pytest.mark.nightly
def test_pull_models_and_rm_follow_a_checkpoint_from_the_hub_and_away(
    hub: FakeHub, sax: Run
) -> None:
    old = hub.push("acme/tiny", FILES, "v1")
    new = hub.push("acme/tiny", {**FILES, "generation_config.json": b"{}"})
    pulled = sax("pull", "acme/tiny")
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).name == new
    assert sax("pull", "hf://acme/tiny@v1").returncode == 0

    listed = json.loads(sax("models", "--json").stdout)
    assert {each["revision"]: each["names"] for each in listed} == {old: ["v1"], new: ["main"]}
    assert {each["format"] for each in listed} == {"safetensors"}
    assert all(each["size"] > 4096 and each["id"] == "hf://acme/tiny" for each in listed)
    assert f"{new[:12]} (main)" in sax("models").stdout

    refused = sax("rm", "acme/tiny")  # nobody answers the question
    assert refused.returncode == 1
    assert len(json.loads(sax("models", "--json").stdout)) == 2
    assert sax("rm", f"acme/tiny@{old[:8]}", "--yes").returncode == 0
    assert [each["revision"] for each in json.loads(sax("models", "--json").stdout)] == [new]
    removed = sax("rm", "hf://acme/tiny", "-y")
    assert removed.stdout.startswith("removed hf://acme/tiny: 1 revision, ")
    assert json.loads(sax("models", "--json").stdout) == []
    gone = sax("rm", "acme/tiny", "-y")
    assert (gone.returncode, "not in the caches" in gone.stderr) == (1, True)


@pytest.mark.nightly
def test_without_a_network_the_cache_alone_answers(hub: FakeHub, sax: Run) -> None:
    hub.push("acme/tiny", FILES)
    none = sax("pull", "acme/tiny", HF_HUB_OFFLINE="1")
    assert none.returncode == 1
    assert "HF_HUB_OFFLINE is set" in none.stderr
    assert hub.asked == []
    first = sax("pull", "acme/tiny")
    assert sax("pull", "acme/tiny", HF_HUB_OFFLINE="1").stdout == first.stdout


@pytest.mark.extended
def test_a_local_path_is_not_pulled(sax: Run, tmp_path: Path) -> None:
    told = sax("pull", str(tmp_path))
    assert told.returncode == 1
    assert "nothing to fetch" in told.stderr
