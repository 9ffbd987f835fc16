"""jaxlib's unmodified client gets what it asks for, and docs/pathways.md says what that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from model_server.pathways.protocol.kinds import REQUESTS

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "pathways.md"
pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def found() -> Any:
    command = [sys.executable, "-m", "tests.model_server.pathways.conformance.report"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NPROC": "16"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True, timeout=100
    )
    return json.loads(done.stdout)


def test_what_jax_offers_of_arrays_and_programs_works(found: Any) -> None:
    told = found["told"]
    assert len(told) > 10
    assert "UNIMPLEMENTED" in told.pop("a callback")
    assert [name for name, right in told.items() if right is not True] == []


def test_every_request_of_the_client_is_answered_without_an_error(found: Any) -> None:
    assert {kind: codes for kind, codes in found["sent"].items() if set(codes) != {"0"}} == {}


def test_an_empty_request_of_any_kind_is_answered_and_the_server_lives(found: Any) -> None:
    assert found["empty"].keys() == set(REQUESTS)


def test_the_page_says_which_kinds_are_carried_out(found: Any) -> None:
    from tests.model_server.pathways.conformance.report import table

    if version("jaxlib").startswith("0.10."):  # the page is of this one
        name = f"(jaxlib {version('jaxlib')}:"
        shown = PAGE.read_text().replace("(jaxlib 0.10.2:", name)
        assert table(found) in shown
