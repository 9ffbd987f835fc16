"""A cell whose callers need keys, and which is soon full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.small_model import MODEL, PATH, SMALL
from tests.identities import Identities


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("people"), "ops", "alice", "bob")


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, people: Identities) -> Iterator[Cell]:
    """A cell of which ops is the operator, with the small model ready.

    Its processes call each other as ops, and so do `sax` and `http` of the cell. One request runs
    and one waits; models that may be at zero are idle after three seconds.
    """
    flags = ("--slots=1", "--queue=1")
    folder = tmp_path_factory.mktemp("guarded")
    plan = local_plan(folder, *flags, tokens=people.path, admin_acl="ops")
    with Cell(replace(plan, admin_flags=("--scale_idle_s=3",)), people) as running:
        running.publish("None", model=MODEL, model_path=PATH, overrides=SMALL)
        yield running


@pytest.fixture(autouse=True)
def as_ops(monkeypatch: pytest.MonkeyPatch, people: Identities) -> None:
    """Clients of a test call as ops unless they have a key of their own."""
    monkeypatch.setenv("SAX_TOKEN", people.tokens["ops"])
