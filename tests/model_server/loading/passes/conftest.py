"""One loader for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader


@pytest.fixture(scope="module")
def loader() -> Iterator[ModelLoader]:
    """What is compiled while serving is an error."""
    made = make_loader(ModelServerConfig(strict_compile=True))
    yield made
    made.watch.stop()
