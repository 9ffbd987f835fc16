"""Models come from a hub: published by their ids, pinned, loaded and asked; or refused at once."""

from __future__ import annotations

import time
from pathlib import Path

from tests.end_to_end.cell import Cell
from tests.model_server.checkpoints.hub.fake_hub import FakeHub
from tests.model_server.checkpoints.tiny_folder import write_tiny

TINY = "/sax/test/tiny"
ENDS_S = 10.0  # somebody waits for a refusal


def test_a_model_is_published_by_its_id_and_what_no_hub_gives_is_refused_at_publish(
    cell: Cell, hub: FakeHub, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "tiny")
    commit = hub.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})
    small = {"MAX_CONTEXT": 64, "NUM_CACHE_SLOTS": 2}
    cell.publish("acme/tiny", model=TINY, model_path="auto", overrides=small)
    assert cell.listed(TINY)["spec"]["checkpoint"] == f"hf://acme/tiny@{commit}"
    assert cell.complete("hello", model=TINY, max_tokens=2).status_code == 200

    body = {"model": "/sax/test/none", "model_path": "auto", "checkpoint": "acme/none"}
    refused = cell.http.post("/publish", json={**body, "replicas": 1})
    assert refused.status_code == 400
    assert "has no acme/none, or it is private" in refused.text

    hub.status = 503
    try:
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
    finally:
        hub.status = 0
        cell.sax("unpublish", TINY)
