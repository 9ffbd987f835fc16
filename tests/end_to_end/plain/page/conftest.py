"""A browser and the page of a real cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import READY, chromium, tab, until
from tests.end_to_end.cell import Cell


# Not for the session: while playwright runs, its process cannot run tests of coroutines.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Any, served: Cell) -> Iterator[Any]:
    """The page of a cell with the demo model ready, with the model chosen."""
    with tab(browser, served.url) as opened:
        until(opened, READY)
        yield opened
