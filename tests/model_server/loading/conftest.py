"""A hub of this process, for tests of loads that fetch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub, use_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of this process, with a tiny model."""
    folder = tmp_path / "tiny"
    write_tiny(folder)
    with running_hub() as running:
        running.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})
        use_hub(running, tmp_path / "cache", monkeypatch)
        yield running
