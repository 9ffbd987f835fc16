"""A model that no server of the cell has room for is placed once one joins that has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.plain.test_too_large import pending
from tests.end_to_end.small_model import PATH, SMALL
from tests.hosts.gang import Gang

# Compiles for four devices; the stories of the planner tell the same in a moment.
pytestmark = pytest.mark.nightly

GIB = 2**30


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell of one server with two devices and 2 GiB."""
    flags = ("--cpu_devices=2", f"--memory_limit_bytes={2 * GIB}", "--slots=2")
    with Cell(local_plan(tmp_path_factory.mktemp("small"), *flags)) as running:
        yield running


def test_it_is_placed_by_itself_when_a_larger_server_joins(small: Cell, tmp_path: Path) -> None:
    model = "/sax/test/wide"
    words = [f"{key}={value}" for key, value in SMALL.items()]
    words += ["ICI_MESH_SHAPE=[1, 1, 4]", "NUM_HEADS=4"]
    published = small.sax("publish", model, PATH, "None", "1", *words)
    assert published.returncode == 0, published.stderr
    small.eventually(lambda: pending(small, model), "it is pending", 60)
    flags = ("--cpu_devices=4", f"--memory_limit_bytes={2 * GIB}", "--slots=2")
    with Gang(tmp_path, *flags, admin=small.plan.admin_address) as large:
        large.wait_until_joined()
        small.eventually(lambda: small.listed(model)["ready_replicas"] == 1, "it is ready")
        (replica,) = small.listed(model)["replicas"]
        assert replica["address"] == large.address
        assert small.text("hello", model=model)
        status = json.loads(small.sax("status", "--json").stdout)
        devices = {s["info"]["address"]: s["info"]["devices"] for s in status["servers"]}
        assert devices[large.address] == 4
        small.sax("unpublish", model)
