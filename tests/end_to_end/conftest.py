"""Cells shared by the end-to-end tests: starting one costs seconds, publishing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
