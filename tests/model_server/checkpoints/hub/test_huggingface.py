"""Checkpoints come from a hub, through the real client, into the cache that its tools share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from model_server.checkpoints.hub.fetching import report_to_nobody
from model_server.checkpoints.hub.huggingface import ModelHub
from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointNotFound, CheckpointUnreachable
from sax.references import HubReference
from sax.types import Progress
from tests.model_server.checkpoints.hub.fake_hub import FakeHub
from tests.model_server.checkpoints.split_file import split_file
from tests.model_server.checkpoints.tiny_folder import write_tiny

REPO = "acme/tiny"
MAIN = HubReference(REPO)


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, bytes]:
    """A real checkpoint, with files that nobody needs."""
    folder = tmp_path / "tiny"
    write_tiny(folder)
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    return {**files, "pytorch_model.bin": b"x" * 99, "onnx/model.onnx": b"y", "README.md": b"z"}


def fetch(client: ModelHub, wanted: HubReference = MAIN) -> Path:
    return client.fetch(wanted, report_to_nobody)


@pytest.mark.extended
def test_a_checkpoint_opens_from_the_cache_and_holds_only_what_is_needed(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    commit = hub.push(REPO, tiny)
    folder = fetch(client)
    assert folder.name == commit
    assert {each.name for each in folder.iterdir()} == set(tiny) - {
        "pytorch_model.bin",
        "onnx/model.onnx",
        "README.md",
    }
    assert hub.fetched[-1] == "model.safetensors"
    open_checkpoint(str(folder)).close()


def test_progress_counts_bytes_to_their_total(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    told: list[Progress] = []
    client.fetch(MAIN, told.append)
    counted = [each for each in told if each.phase == "downloading"]
    total = sum(len(tiny[name]) for name in set(hub.fetched))
    assert counted[-1] == Progress("downloading", total, total, "bytes")
    assert [each.done for each in counted] == sorted(each.done for each in counted)


def test_a_pinned_checkpoint_in_the_cache_asks_nobody(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    pinned = client.pin(MAIN)
    assert pinned.pinned
    fetch(client, pinned)
    asked = len(hub.asked)
    assert client.pin(pinned) == pinned
    assert fetch(client, pinned) == fetch(client, pinned)
    assert len(hub.asked) == asked


@pytest.mark.extended
def test_an_interrupted_download_goes_on_with_what_is_missing(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    hub.slow.clear()

    def cancel(progress: Progress) -> None:
        if hub.fetched:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        client.fetch(MAIN, cancel)
    hub.slow.set()
    for thread in threading.enumerate():
        if thread.name == "download":
            thread.join(60)
    assert len(hub.fetched) == 1  # which was not kept: nobody waited for its end
    folder = fetch(client)
    assert hub.fetched[-1] == "model.safetensors"
    open_checkpoint(str(folder)).close()


def test_files_that_came_before_a_download_failed_are_not_fetched_again(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    hub.lost = "model.safetensors"
    with pytest.raises(CheckpointNotFound, match=r"model\.safetensors"):
        fetch(client)
    hub.lost = ""
    assert "config.json" in hub.fetched
    hub.asked.clear()
    fetch(client)
    assert hub.fetched == ["model.safetensors"]


def test_a_branch_moves_and_a_tag_and_a_commit_stay(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    old = hub.push(REPO, tiny, "v1")
    new = hub.push(REPO, {**tiny, "generation_config.json": b"{}"})
    assert old != new
    assert fetch(client).name == new
    assert fetch(client, HubReference(REPO, "v1")).name == old
    assert fetch(client, HubReference(REPO, old)).name == old
    with pytest.raises(CheckpointNotFound, match="no revision v2 of acme/tiny"):
        fetch(client, HubReference(REPO, "v2"))


def test_a_split_gguf_file_is_fetched_with_all_its_parts(
    hub: FakeHub, client: ModelHub, gguf_file: Path, tmp_path: Path
) -> None:
    parts = {f"Q8/{each.name}": each for each in split_file(gguf_file, tmp_path / "split")}
    hub.push(REPO, {**{name: each.read_bytes() for name, each in parts.items()}, "m-Q4.gguf": b""})
    wanted = HubReference(REPO, "", "Q8/m-00003-of-00004.gguf")
    pinned = client.pin(wanted)
    assert pinned.file == "Q8/m-00001-of-00004.gguf"
    path = fetch(client, pinned)
    assert set(hub.fetched) == set(parts)
    open_checkpoint(str(path)).close()
    second = path.parent / "m-00002-of-00004.gguf"
    second.unlink()
    assert fetch(client, pinned) == path  # which is not whole without it
    assert second.is_file()


def test_only_the_named_gguf_file_is_fetched(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, {"m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight", "config.json": b"{}"})
    with pytest.raises(CheckpointNotFound, match=r"hf://acme/tiny: it holds 2 GGUF files"):
        fetch(client)
    file = fetch(client, HubReference(REPO, file="Q8_0"))
    assert (file.name, file.read_bytes()) == ("m-Q8_0.gguf", b"eight")
    assert hub.fetched == ["m-Q8_0.gguf"]
    assert str(client.pin(HubReference(REPO, file="Q8_0"))).endswith(":m-Q8_0.gguf")


def test_a_plan_needs_the_configuration_alone(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    config = client.fetch_config(MAIN)
    assert config is not None
    assert config.read_bytes() == tiny["config.json"]
    assert hub.fetched == ["config.json"]


def test_what_the_hub_does_not_have_is_told_with_a_remedy(hub: FakeHub, client: ModelHub) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no acme/tiny, or it is private.*HF_TOKEN") as no:
        fetch(client)
    assert no.value.param == "checkpoint"


def test_a_token_opens_what_is_private(
    hub: FakeHub,
    client: ModelHub,
    tiny: Mapping[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.push(REPO, tiny)
    hub.token = "hf_secret"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(CheckpointNotFound, match="HF_TOKEN"):
        fetch(client)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch(client).is_dir()


def test_terms_that_nobody_accepted_are_named(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    hub.gated = True
    with pytest.raises(CheckpointNotFound, match=f"is gated: accept its terms at {hub.url}"):
        fetch(client)


def test_a_hub_that_is_down_is_no_matter_for_what_is_in_the_cache(
    hub: FakeHub, client: ModelHub, tiny: Mapping[str, bytes]
) -> None:
    hub.push(REPO, tiny)
    hub.status = 500
    with pytest.raises(CheckpointUnreachable, match="it answers 500.*HF_ENDPOINT"):
        fetch(client)
    hub.status = 0
    folder = fetch(client)
    hub.status = 503
    assert fetch(client) == folder


def test_a_hub_that_is_not_there_is_told_at_once(cache: Path) -> None:
    nowhere = ModelHub(endpoint="http://127.0.0.1:9", cache=str(cache))
    with pytest.raises(CheckpointUnreachable, match=r"http://127.0.0.1:9 is not reachable"):
        nowhere.pin(MAIN)
