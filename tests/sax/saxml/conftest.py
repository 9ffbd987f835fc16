"""A cell that Saxml's calls find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sax.saxml.options import client_at
from tests.sax.client.test_blocking_client import Cell


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    cell = Cell()
    monkeypatch.setenv("SAX_ADMIN", cell.admin.address)
    yield cell
    client_at(cell.admin.address).close()
    client_at.cache_clear()
    cell.close()
