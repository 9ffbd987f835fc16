"""`update --canary`, `promote`, `abort` and what `ls` shows meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sax.cli.commands.wait import is_settled
from sax.cli.main import app
from sax.types import Canary, ModelSpec, PublishedModel, ReplicaStatus, ServableStatus
from tests.each_case import each_case
from tests.sax.cli.fake_cell import FakeCell
from tests.sax.cli.test_main import MODEL, Sax


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds(MODEL)
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str, stdin: str | bytes | None = None):
        return CliRunner().invoke(app, ["--admin", cell.address, *words], input=stdin)

    return run


def test_a_canary_is_started_shown_and_promoted(cell: FakeCell, sax: Sax) -> None:
    result = sax("update", MODEL, "--override", "A=1", "--canary", "10%", "--wait")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"canary at 10% of {MODEL}")
    canary = cell.models[MODEL].spec.canary
    assert canary is not None
    assert (canary.checkpoint, canary.overrides, canary.percent) == ("/c", {"A": "1"}, 10)
    assert "ready, canary 10%" in sax("ls").stdout
    shown = sax("ls", MODEL).stdout
    assert f"10% of the requests, 1 ready replica, /c, {'c' * 32}" in shown
    assert "ready (canary)" in shown
    value = json.loads(sax("ls", MODEL, "--json").stdout)
    assert value["spec"]["canary"]["percent"] == 10
    assert [replica["canary"] for replica in value["replicas"]] == [False, True]
    assert sax("promote", MODEL).stdout == f"promoted the canary of {MODEL}\n"
    assert cell.models[MODEL].spec.canary is None


def test_its_share_is_changed_without_naming_it_again(cell: FakeCell, sax: Sax) -> None:
    sax("update", MODEL, "--checkpoint", "/two", "--canary", "10")
    assert sax("update", MODEL, "--canary", "25").exit_code == 0
    canary = cell.models[MODEL].spec.canary
    assert canary is not None
    assert (canary.checkpoint, canary.percent) == ("/two", 25)


def test_an_abort_says_so_in_json_too(cell: FakeCell, sax: Sax) -> None:
    sax("update", MODEL, "--checkpoint", "/two", "--canary", "10")
    said = json.loads(sax("abort", MODEL, "--json").stdout)
    assert said == {"model": MODEL, "done": "aborted the canary of"}


LOADED, OLD = ServableStatus.LOADED, "serves its version until its turn"


@each_case(
    "canary, replicas, settled",
    [
        (True, [ReplicaStatus("a", LOADED), ReplicaStatus("b", LOADED, canary=True)], True),
        (True, [ReplicaStatus("a", LOADED), ReplicaStatus("b", LOADED, OLD, canary=True)], False),
        (True, [ReplicaStatus("a", LOADED), ReplicaStatus("b", LOADED)], False),  # as before it
        (False, [ReplicaStatus("a", LOADED), ReplicaStatus("b", LOADED)], True),
        (False, [ReplicaStatus("a", LOADED, OLD), ReplicaStatus("b", LOADED)], False),
        (False, [ReplicaStatus("a", LOADED), ReplicaStatus("b", LOADED, canary=True)], False),
    ],
)
def test_wait_ends_when_every_replica_has_the_version_it_is_to_have(
    canary: bool, replicas: list[ReplicaStatus], settled: bool
) -> None:
    spec = ModelSpec(
        model_id=MODEL,
        model_path="llama",
        checkpoint="/c",
        replicas=2,
        canary=Canary(version="c" * 32, checkpoint="/two", percent=10) if canary else None,
    )
    assert is_settled(PublishedModel(spec, tuple(replicas), wanted=2)) == settled


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--canary", "all"), "give a percentage of the requests, such as 10%"),
        (("--checkpoint", "/two", "--canary", "100%"), "`sax promote`"),
        (("--checkpoint", "/two", "--canary", "5", "--replicas", "2"), "an update of its own"),
    ],
)
def test_nonsense_is_refused_with_what_to_do(sax: Sax, words: tuple[str, ...], says: str) -> None:
    result = sax("update", MODEL, *words)
    assert result.exit_code == 1
    assert says in result.stderr
