"""Models that no server of the cell has room for: pending, with what they need, until one has."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import MODEL_SERVER, Cell

GIB = 2**30
UNSHRUNK = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
ROOM = ("NUM_CACHE_SLOTS=2",)
# What the tutorial's model needs, and what the largest server of this cell has.
BOTH = re.compile(
    r"needs 32 devices with (?P<each>[\d.]+) GiB each \((?P<all>[\d.]+) GiB in all\); "
    r"the largest server has 1 device with (?P<there>[\d.]+) GiB"
)


def pending(cell: Cell, model: str) -> dict[str, Any] | None:
    """Its only replica, once it has no server and a reason that tells a need."""
    replica: dict[str, Any]
    (replica,) = cell.listed(model)["replicas"]
    assert replica["status"] != "failed", replica
    return replica if replica["status"] == "none" and "needs" in replica["reason"] else None


def test_the_unshrunk_model_of_the_tutorial_stays_pending_and_says_why(cell: Cell) -> None:
    model = "/sax/test/spmd"
    published = cell.sax("publish", model, UNSHRUNK, "None", "1", *ROOM)
    assert published.returncode == 0, published.stderr
    replica = cell.eventually(lambda: pending(cell, model), "it is pending", 60)
    assert replica["address"] == ""
    figures = BOTH.fullmatch(replica["reason"])
    assert figures, replica["reason"]
    assert 5 < float(figures["each"]) < 8
    assert 163 < float(figures["all"]) < 256  # a byte for each weight, and what serving takes
    assert float(figures["each"]) * 32 == pytest.approx(float(figures["all"]), rel=0.02)
    assert float(figures["there"]) == pytest.approx(cell.plan.memory / GIB, abs=0.1)
    # The same words wherever somebody looks.
    assert replica["reason"] in cell.sax("ls", "--csv").stdout
    listed = cell.http.request("GET", "/listcell", json={"model": model})
    assert listed.is_success, listed.text
    assert listed.json()["active_replicas"] == 0
    assert listed.json()["reason"] == replica["reason"]
    page = httpx.get(f"http://127.0.0.1:{cell.plan.status_port}/status.json", trust_env=False)
    (shown,) = [one for one in page.json()["models"] if one["model"] == model]
    assert [one["reason"] for one in shown["replicas"]] == [replica["reason"]]
    assert page.json()["servers"][0]["devices"] == 1
    assert cell.log(MODEL_SERVER).count("loading failed for key: " + model) == 1
    cell.sax("unpublish", model)


def test_waiting_for_it_tells_what_is_missing(cell: Cell) -> None:
    command = ["publish", "/sax/test/waits", UNSHRUNK, "None", "1", *ROOM, "--wait"]
    with subprocess.Popen(
        [sys.executable, "-m", "sax.cli", "--admin", cell.plan.admin_address, *command],
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
    cell.sax("unpublish", "/sax/test/waits")
