"""Checkpoints of a hub are pinned, and only below the roots."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from model_server.loading.checkpoint_opener import CheckpointOpener, Openings, named
from sax.errors import CheckpointError, CheckpointNotFound, InvalidName
from sax.types import ModelSpec
from tests.model_server.checkpoints.hub.fake_hub import FakeHub

TINY = "hf://acme/tiny"


def opener(*roots: str) -> CheckpointOpener:
    return CheckpointOpener(roots, open_seconds=60)


def test_a_draft_model_of_a_hub_is_pinned_with_the_model(hub: FakeHub) -> None:
    commit = hub.heads["acme/tiny"]["main"]
    spec = ModelSpec(
        model_id="/sax/test/tiny",
        model_path="auto",
        checkpoint="acme/tiny",
        replicas=1,
        overrides={"DRAFT_MODEL": json.dumps(TINY)},
    )
    pinned = opener().pinned(spec)
    assert pinned.checkpoint == f"{TINY}@{commit}"
    assert json.loads(pinned.overrides["DRAFT_MODEL"]) == f"{TINY}@{commit}"


def test_a_path_is_not_pinned_and_no_name_of_a_hub_is_an_error() -> None:
    assert opener().pin("/a/path") == "/a/path"
    with pytest.raises(InvalidName, match="names nothing on a hub"):
        opener().pin("hf://a/b/c")


def test_roots_say_whether_and_whose_checkpoints_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    for roots in ((str(tmp_path),), ("hf://acm",), ("hf://other",)):
        with pytest.raises(CheckpointError, match="hf://acme/tiny is not below --checkpoint_roots"):
            opener(*roots).pin("acme/tiny")
    assert hub.asked == []
    assert opener("hf://acme").pin("acme/tiny").startswith(TINY)
    assert opener(str(tmp_path), "hf://").pin("acme/tiny").startswith(TINY)


@pytest.mark.parametrize(
    ("text", "told"), [("is torn", "/a/path: is torn"), ("/a/path/x is torn", "/a/path/x is torn")]
)
def test_an_error_names_the_checkpoint_once(text: str, told: str) -> None:
    with pytest.raises(CheckpointNotFound) as error, named("/a/path"):
        raise CheckpointNotFound(text)
    assert error.value.text == told


def test_what_a_job_returns_or_raises_comes_back() -> None:
    openings = Openings(60)
    assert openings.run("here", lambda: 5) == 5
    with pytest.raises(CheckpointError, match="broken"):
        openings.run("here", broken)
    with pytest.raises(TimeoutError, match="its own"):
        openings.run("here", timed_out)
    assert openings.hanging == 0


def broken() -> None:
    raise CheckpointError("broken")


def timed_out() -> None:
    raise TimeoutError("its own")


def test_a_job_that_hangs_is_left_behind_and_undone_if_it_ends() -> None:
    openings, answers, undone = Openings(0.01), threading.Event(), threading.Event()
    with pytest.raises(CheckpointError, match=r"/slow could not be opened within 0\.01 s"):
        openings.run("/slow", answers.wait, lambda _: undone.set())
    assert openings.hanging == 1
    answers.set()
    undone.wait()
    assert openings.hanging == 0


def test_no_more_than_a_few_threads_hang() -> None:
    openings, answers = Openings(0.01), threading.Event()
    for _ in range(8):
        with pytest.raises(CheckpointError, match="within"):
            openings.run("/slow", answers.wait)
    with pytest.raises(CheckpointError, match="/other is not opened: 8 checkpoints"):
        openings.run("/other", lambda: 5)
    answers.set()
