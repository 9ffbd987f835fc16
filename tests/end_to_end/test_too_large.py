"""Models that no server of the cell has room for: pending, with what they need, until one has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import MODEL_SERVER, Cell, local_plan
from tests.end_to_end.test_random_weights import PATH, SMALL
from tests.hosts.gang import Gang

pytestmark = pytest.mark.timeout(600)

GIB = 2**30
UNSHRUNK = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
# What the tutorial's model needs, and what the largest server of this cell has.
BOTH = re.compile(
    r"needs 32 devices with (?P<each>[\d.]+) GiB each \((?P<all>[\d.]+) GiB in all\); "
    r"the largest server has 2 devices with 1\.0 GiB each"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell of one server with two devices and 2 GiB."""
    flags = ("--cpu_devices=2", f"--memory_limit_bytes={2 * GIB}", "--slots=2")
    with Cell(local_plan(tmp_path_factory.mktemp("small"), *flags)) as running:
        yield running


def pending(cell: Cell, model: str) -> dict[str, Any] | None:
    """Its only replica, once it has no server and a reason that tells a need."""
    replica: dict[str, Any]
    (replica,) = cell.listed(model)["replicas"]
    assert replica["status"] != "failed", replica
    return replica if replica["status"] == "none" and "needs" in replica["reason"] else None


def test_the_unshrunk_model_of_the_tutorial_stays_pending_and_says_why(small: Cell) -> None:
    model = "/sax/test/spmd"
    published = small.sax("publish", model, UNSHRUNK, "None", "1")
    assert published.returncode == 0, published.stderr
    replica = small.eventually(lambda: pending(small, model), "it is pending", 60)
    assert replica["address"] == ""
    figures = BOTH.fullmatch(replica["reason"])
    assert figures, replica["reason"]
    assert 5 < float(figures["each"]) < 8
    assert 163 < float(figures["all"]) < 256  # a byte for each weight, and what serving takes
    assert float(figures["each"]) * 32 == pytest.approx(float(figures["all"]), rel=0.02)
    # The same words wherever somebody looks.
    assert replica["reason"] in small.sax("ls", "--csv").stdout
    listed = small.http.request("GET", "/listcell", json={"model": model})
    assert listed.is_success, listed.text
    assert listed.json()["active_replicas"] == 0
    assert listed.json()["reason"] == replica["reason"]
    page = httpx.get(f"http://127.0.0.1:{small.plan.status_port}/status.json", trust_env=False)
    (shown,) = page.json()["models"]
    assert [one["reason"] for one in shown["replicas"]] == [replica["reason"]]
    assert page.json()["servers"][0]["devices"] == 2
    assert small.log(MODEL_SERVER).count("loading failed for key: " + model) == 1
    small.sax("unpublish", model)


def test_waiting_for_it_tells_what_is_missing(small: Cell) -> None:
    command = ["publish", "/sax/test/waits", UNSHRUNK, "None", "--wait"]
    with subprocess.Popen(
        [sys.executable, "-m", "sax.cli", "--admin", small.plan.admin_address, *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as waiting:
        try:
            assert waiting.stderr is not None
            told = next(line for line in waiting.stderr if "needs" in line)
            assert BOTH.search(told), told
            assert waiting.poll() is None  # it goes on waiting
        finally:
            waiting.kill()
    small.sax("unpublish", "/sax/test/waits")


@pytest.mark.nightly  # compiles for four devices; the stories of the planner tell the same in a moment
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
