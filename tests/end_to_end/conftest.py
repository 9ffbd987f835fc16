"""What tests of every cell need. The cells themselves are in the folders of those that share them.

A test that shares a cell lies in the folder of that cell, and in `alone/` one that has its own:
`tests/work_units.py` gives each shared cell's folder to one worker, so that it starts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sax.saxml.options import client_at
from tests.demo_model import demo_model
from tests.end_to_end.cell import Cell

# Small enough for two cells at once on a laptop; the same everywhere, so that steps compile once.
FLAGS = ("--slots=8", "--max_context=2048")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for the cell, and maybe for a cold compile."""
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def gguf() -> Path:
    return demo_model()


@pytest.fixture
def saxml_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Cell], None]]:
    """Point Saxml's API at a cell; its client ends with the test, as the API has no close."""
    with ExitStack() as clients:

        def point(cell: Cell) -> None:
            monkeypatch.setenv("SAX_ADMIN", cell.plan.admin_address)
            clients.callback(client_at.cache_clear)
            clients.callback(lambda: client_at(cell.plan.admin_address).close())

        yield point
