"""Every row of the stress table, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stress.cells import Cells
from tests.stress.row import ROWS, check, run
from tests.stress.table import load_rows

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("stress")]

load_rows()


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    cells = Cells(tmp_path_factory.mktemp("stress"))
    yield cells
    cells.close()


@pytest.mark.parametrize("name", ROWS)
def test_the_neighbour_of_an_attack_notices_nothing(cells: Cells, name: str) -> None:
    row = ROWS[name]
    try:
        check(row, run(row, cells.of(row)))
    except BaseException:
        cells.drop(row)
        raise
