"""A cell of two model servers that sends its traces to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.cell import MODEL_SERVER, Cell, local_plan
from tests.otlp_collector import Collector, collecting

SERVERS = (f"{MODEL_SERVER} 0", f"{MODEL_SERVER} 1")


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Cell]:
    """The cell, with nothing published but what tests publish."""
    flags = ("--slots=8", "--max_context=2048", "--drain_seconds=1")
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with Cell(local_plan(tmp_path_factory.mktemp("pair"), *flags, servers=2), environ=traces) as it:
        yield it


@pytest.fixture(scope="session")
def twice(pair: Cell, gguf: Path) -> Cell:
    """The cell with two replicas of the demo model.

    In float32, as the reference computed it, so that rounding is the same in any batch.
    """
    overrides = {"DTYPE": "float32", "MAX_CONTEXT": 1024}
    pair.publish(str(gguf), replicas=2, overrides=overrides)
    both_ready(pair)
    return pair


def both_ready(cell: Cell) -> None:
    cell.eventually(lambda: cell.ready_replicas() == 2, "both replicas are ready")
