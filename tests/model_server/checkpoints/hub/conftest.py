"""A hub on this machine, and a client of it with an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_server.checkpoints.hub.huggingface import ModelHub
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def client(hub: FakeHub, cache: Path) -> ModelHub:
    return ModelHub(endpoint=hub.url, cache=str(cache))
