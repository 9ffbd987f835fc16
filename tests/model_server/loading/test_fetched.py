"""The real loader on checkpoints of a hub: fetched with progress, pinned, and only if allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader
from sax.errors import CheckpointError, CheckpointNotFound, InvalidName
from sax.types import ModelSpec, Progress
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub, use_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny

TINY = "hf://acme/tiny"


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(ModelServerConfig(slots=2, page_size=16))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of this process, with a tiny model."""
    folder = tmp_path / "tiny"
    write_tiny(folder)
    with running_hub() as running:
        running.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})
        use_hub(running, tmp_path / "cache", monkeypatch)
        yield running


def spec(checkpoint: str = TINY, **overrides: str) -> ModelSpec:
    return ModelSpec(
        model_id="/sax/test/tiny",
        model_path="auto",
        checkpoint=checkpoint,
        replicas=1,
        overrides=overrides,
    )


def test_a_model_of_a_hub_is_loaded_and_says_how_far_its_download_is(
    loader: ModelLoader, hub: FakeHub
) -> None:
    told: list[Progress] = []
    loaded = loader(spec("acme/tiny"), told.append)
    loaded.runner.close()
    phases = list(dict.fromkeys(each.phase for each in told))
    assert phases.index("downloading") < phases.index("reading weights")
    assert [each.unit for each in told if each.phase == "downloading"][-1] == "bytes"
    fetched = list(hub.fetched)
    loader(spec(), told.append).runner.close()
    assert hub.fetched == fetched  # once


def test_a_draft_model_of_a_hub_is_pinned_with_the_model(loader: ModelLoader, hub: FakeHub) -> None:
    commit = hub.heads["acme/tiny"]["main"]
    pinned = loader.pinned(spec("acme/tiny", DRAFT_MODEL=json.dumps(TINY)))
    assert pinned.checkpoint == f"{TINY}@{commit}"
    assert json.loads(pinned.overrides["DRAFT_MODEL"]) == f"{TINY}@{commit}"
    assert loader.pin("/a/path") == "/a/path"


def test_what_the_hub_does_not_have_is_told_before_anything_is_loaded(
    loader: ModelLoader, hub: FakeHub
) -> None:
    with pytest.raises(CheckpointNotFound, match="has no acme/other"):
        loader(spec("acme/other"), print)
    with pytest.raises(InvalidName, match="names nothing on a hub"):
        loader.pin("hf://a/b/c")


def test_roots_say_whether_and_whose_checkpoints_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    def pin(*roots: str) -> str:
        return make_loader(ModelServerConfig(checkpoint_roots=roots)).pin("acme/tiny")

    for roots in ((str(tmp_path),), ("hf://acm",), ("hf://other",), ("pypi://",)):
        with pytest.raises(CheckpointError, match="hf://acme/tiny is not below --checkpoint_roots"):
            pin(*roots)
    assert hub.asked == []
    assert pin("hf://acme").startswith(TINY)
    assert pin(str(tmp_path), "hf://").startswith(TINY)
