"""A new version gets a part of the requests, and then all of them or none, whatever happens to the
admin server meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from sax.client import Client
from tests.end_to_end.cell import ADMIN, Cell
from tests.end_to_end.small_model import MODEL, PATH, SMALL

OLD, NEW = SMALL, {**SMALL, "NUM_LAYERS": 3}  # random weights: other layers, another answer
PROMPT = "what comes next?"


@pytest.fixture(scope="module")
def both(pair: Cell) -> Iterator[Cell]:
    """A replica of the small model on each server."""
    pair.publish("None", model=MODEL, model_path=PATH, replicas=2, overrides=OLD)
    all_ready(pair)
    yield pair
    pair.sax("unpublish", MODEL)


def all_ready(cell: Cell) -> None:
    with Client(cell.plan.admin_address) as client:

        def look() -> bool:
            listed = client.list(MODEL)
            return listed.ready_replicas == 2 and not any(each.reason for each in listed.replicas)

        cell.eventually(look, "two replicas are ready, each with the version it is to have")


def answers(cell: Cell, count: int, **headers: str) -> Counter[str]:
    """How often each text was the answer to one prompt."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    said = Counter[str]()
    for _ in range(count):
        reply = cell.http.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        said[reply.json()["choices"][0]["text"]] += 1
    return said


def start(cell: Cell, percent: str) -> None:
    words = [f"--override={key}={json.dumps(value)}" for key, value in NEW.items()]
    done = cell.sax("update", MODEL, *words, "--canary", percent, "--wait")
    assert done.returncode == 0, done.stderr
    all_ready(cell)


def share(said: Counter[str], old: str) -> float:
    return 1 - said[old] / said.total()


@pytest.mark.nightly
def test_a_canary_gets_its_share_survives_the_admin_server_and_is_promoted_or_aborted(
    both: Cell,
) -> None:
    (old,) = answers(both, 10)
    start(both, "30%")
    said = answers(both, 200)
    assert len(said) == 2
    assert 0.15 < share(said, old) < 0.45, said
    canary = both.listed(MODEL)["spec"]["canary"]
    assert canary["percent"] == 30
    assert both.http.get("/listcell", params={"model": MODEL}).json()["canary"] == {
        **canary,
        "ready_replicas": 1,
    }

    # A session has one version, and keeps it while the share grows.
    before = {name: answers(both, 2, **{"x-session-id": name}) for name in map(str, range(30))}
    assert all(len(each) == 1 for each in before.values())
    assert 0 < sum(old not in each for each in before.values()) < 20

    # The admin server dies: nothing changes, and its successor knows the canary.
    both.kill(ADMIN)
    assert 0.1 < share(answers(both, 100), old) < 0.5
    both.start(ADMIN)
    both.eventually(lambda: both.sax("ls", MODEL).returncode == 0, "the admin server is back")
    all_ready(both)
    assert both.listed(MODEL)["spec"]["canary"] == canary
    assert 0.1 < share(answers(both, 100), old) < 0.5

    grown = both.sax("update", MODEL, "--canary", "60")
    assert grown.returncode == 0, grown.stderr
    both.eventually(lambda: share(answers(both, 60), old) > 0.4, "the canary gets more")
    for name, each in before.items():
        if old not in each:
            assert answers(both, 2, **{"x-session-id": name}).keys() == each.keys()

    second = both.sax("update", MODEL, "--checkpoint", "/elsewhere", "--canary", "10%")
    assert second.returncode == 1
    assert "sax promote" in second.stderr

    assert both.sax("abort", MODEL, "--wait").returncode == 0
    both.eventually(lambda: answers(both, 20).keys() == {old}, "all get the old version")
    all_ready(both)
    assert both.listed(MODEL)["spec"]["canary"] is None

    start(both, "10%")
    assert both.sax("promote", MODEL, "--wait").returncode == 0
    both.eventually(lambda: old not in answers(both, 20), "all get the new version")
    all_ready(both)
    kinds = [line["kind"] for line in json.loads(both.sax("events", MODEL, "--json").stdout)]
    assert kinds == ["promote", "canary", "abort", "canary", "canary", "publish"]
