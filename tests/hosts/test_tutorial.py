"""Saxml's tutorial of the 175B model, whole: two replicas on eight hosts of four devices each.

By `sax up` and the tutorial's four curls. Only the sizes are shrunk, by overrides; recipe, mesh and
quantisation are the tutorial's own.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sax.cli.local.cell_plan import CellPlan
from tests.end_to_end.cell import local_plan
from tests.end_to_end.command import Command, options, sax
from tests.end_to_end.tutorial_reader import curl_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

MODEL = "/sax/test/spmd"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
# 32 heads, as many as devices: the mesh of the recipe stays [1, 1, 32].
SHRUNK = (
    "NUM_LAYERS=2 MODEL_DIMS=128 HIDDEN_DIMS=256 NUM_HEADS=32 DIMS_PER_HEAD=4 VOCAB_SIZE=512 "
    "INPUT_SEQ_LEN=48 MAX_DECODE_STEPS=16"
)
SERVERS, HOSTS, DEVICES = 2, 8, 4
# Sixteen processes of many threads each share what cores there are: a beat may come late.
FLAGS = ("--slots=2", "--host_timeout_seconds=60")
LOADED = f"loading completed. Successfully loaded model for key: {MODEL}"
LOAD_S = 900.0


class Tutorial:
    """The cell of one `sax up`, asked from outside."""

    def __init__(self, plan: CellPlan, command: Command) -> None:
        self.plan = plan
        self._command = command

    def post(self, route: str, data: object) -> Any:
        return json.loads(curl_of(self.plan, "POST", route, data))

    def get(self, route: str, data: object) -> Any:
        return json.loads(curl_of(self.plan, "GET", route, data))

    def eventually(self, look: Callable[[], bool], what: str, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not look():
            assert self._command.process.poll() is None, self._command.output
            assert time.monotonic() < deadline, f"not in time: {what}\n{self._command.output}"
            time.sleep(1)

    def primary_logs(self) -> list[str]:
        """What the first host of each replica wrote."""
        children = (child for child in self.plan.children if child.name.endswith(" host 0"))
        return [child.log.read_text(errors="replace") for child in children]

    def generated(self) -> list[float]:
        """Tokens that each replica has generated."""
        pages = (httpx.get(s.metrics_url, trust_env=False).text for s in self.plan.model_servers)
        return [_figure(page, "sax_generated_tokens_total") for page in pages]

    def processes(self) -> list[int]:
        """Ids of the hosts that run, of both replicas."""
        flags = {f"--group_port={server.group_port}" for server in self.plan.model_servers}
        return [int(folder.name) for folder in _processes() if flags & _arguments(folder)]


def _figure(page: str, name: str) -> float:
    wanted = f'{name}{{model="{MODEL}"}} '
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if wanted in line)


def _processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


def _arguments(folder: Path) -> set[str]:
    try:
        return set((folder / "cmdline").read_text().split("\0"))
    except OSError:  # it has just ended
        return set()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="counts the processes in /proc")
def test_two_replicas_of_eight_hosts_serve_the_tutorials_175b_recipe(tmp_path: Path) -> None:
    plan = local_plan(tmp_path / "cell", servers=SERVERS, hosts=HOSTS, devices_per_host=DEVICES)
    with sax("up", *options(plan), "--", *FLAGS) as command:
        command.until("is up", LOAD_S)
        cell = Tutorial(plan, command)
        assert len(cell.processes()) == SERVERS * HOSTS
        publish_and_wait(cell)
        both_generate(cell)
        unpublish(cell)
        assert "compiled while serving" not in "".join(cell.primary_logs())
        assert command.end(signal.SIGINT) == 0, command.output
        assert cell.processes() == []
    drained = [line for line in command.lines if line.startswith("draining")]
    assert len(drained) == 2 + SERVERS
    assert not any(word in command.output for word in ("restarting", "killing", "Traceback"))


def publish_and_wait(cell: Tutorial) -> None:
    publication = {"model": MODEL, "model_path": PATH, "checkpoint": "None", "replicas": SERVERS}
    published = cell.post("publish", {**publication, "overrides": SHRUNK})
    assert {key: published[key] for key in publication} == publication

    def listed() -> Any:
        return cell.get("listcell", {"model": MODEL})

    cell.eventually(lambda: listed()["active_replicas"] == SERVERS, "both are active", LOAD_S)
    assert listed()["max_replicas"] == SERVERS
    assert [LOADED in log for log in cell.primary_logs()] == [True] * SERVERS


def both_generate(cell: Tutorial) -> None:
    """The tutorial's query, then as many at once as make every replica answer."""
    query = {"model": MODEL, "query": "How many days are in a week?"}
    answers = cell.post("generate", query)
    assert answers
    assert all(isinstance(text, str) and isinstance(score, float) for text, score in answers)
    greedy = {**query, "extra_inputs": {"temperature": 0, "per_example_max_decode_steps": 8}}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cell.post("generate", greedy), range(8)))
    assert min(cell.generated()) > 0, cell.generated()
    # The same random weights on both, whichever answers: one question has one answer.
    [[text, score]] = found[0]
    assert [[each[0][0], len(each)] for each in found] == [[text, 1]] * len(found)
    assert [each[0][1] for each in found] == pytest.approx([score] * len(found), rel=1e-3)


def unpublish(cell: Tutorial) -> None:
    assert cell.post("unpublish", {"model": MODEL}) == {"model": MODEL}
    assert cell.get("listall", {"sax_cell": cell.plan.cell}) == []
