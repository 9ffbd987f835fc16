"""Checkpoints of a hub are pinned, and only below the roots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_server.loading.opening.checkpoint_opener import CheckpointOpener, named
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
