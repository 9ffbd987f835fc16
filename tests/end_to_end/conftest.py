"""Cells shared by the end-to-end tests: starting one costs seconds, publishing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sax.saxml import cell_client
from tests.demo_model import demo_model
from tests.end_to_end.cell import Cell, local_plan

# Small enough for two cells at once on a laptop; the same everywhere, so that steps compile once.
FLAGS = ("--slots=8", "--max_context=2048")


@pytest.fixture(scope="session")
def gguf() -> Path:
    return demo_model()


@pytest.fixture(scope="session")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell with nothing published but what tests publish."""
    with Cell(local_plan(tmp_path_factory.mktemp("cell"), *FLAGS)) as running:
        yield running


@pytest.fixture(scope="session")
def served(cell: Cell, gguf: Path) -> Cell:
    """The shared cell with /sax/test/smollm2 ready. Tests leave it ready."""
    cell.publish(str(gguf))
    return cell


@pytest.fixture
def saxml_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Cell], None]]:
    """Point Saxml's API at a cell; its client ends with the test, as the API has no close."""
    with ExitStack() as clients:

        def point(cell: Cell) -> None:
            monkeypatch.setenv("SAX_ADMIN", cell.plan.admin_address)
            clients.callback(cell_client.client_at.cache_clear)
            clients.callback(lambda: cell_client.client_at(cell.plan.admin_address).close())

        yield point
