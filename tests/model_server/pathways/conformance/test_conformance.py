"""jaxlib's unmodified client gets what it asks for, as docs/explanation/pathways.md lists it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from model_server.pathways.protocol import REQUESTS
from tests.model_server.pathways.conformance.page import PAGE, written
from tests.model_server.pathways.conformance.record import (
    CARRIED_OUT,
    VERSIONS,
    ConformanceRecord,
    installed,
    kept,
    minor,
)

ROOT = Path(__file__).parents[4]


CLIENTS = list(filter(None, os.environ.get("SAX_TEST_CLIENTS", "").split(os.pathsep)))


@pytest.fixture(scope="module")
def found() -> Any:
    return found_with(sys.executable)


def found_with(client: str) -> Any:
    """Return the report of a client on another Python, which may have another jaxlib."""
    report = "tests.model_server.pathways.conformance.report"
    command = [sys.executable, "-m", report, "--client", client]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NPROC": "16"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True, timeout=280
    )
    return json.loads(done.stdout)


def check_told(told: dict[str, Any]) -> None:
    assert len(told) > 10
    assert "UNIMPLEMENTED" in told.pop("a callback")
    assert [name for name, right in told.items() if right is not True] == []


def test_what_jax_offers_of_arrays_and_programs_works(found: Any) -> None:
    check_told(dict(found["told"]))


@pytest.mark.skipif(not CLIENTS, reason="make conformance names Pythons with other jaxlibs")
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_of_other_versions_work_with_this_server(client: str) -> None:
    found = found_with(client)
    check_told(found["told"])
    assert {kind: codes for kind, codes in found["sent"].items() if set(codes) != {"0"}} == {}


def test_every_request_of_the_client_is_answered_without_an_error(found: Any) -> None:
    assert {kind: codes for kind, codes in found["sent"].items() if set(codes) != {"0"}} == {}


def test_an_empty_request_of_any_kind_is_answered_and_the_server_lives(found: Any) -> None:
    assert found["empty"].keys() == set(REQUESTS)


def test_the_record_of_the_installed_jaxlib_is_of_today(found: Any) -> None:
    record = kept(installed())
    assert record is not None, "make conformance"
    of_today = msgspec.convert(found["record"], ConformanceRecord)
    assert msgspec.structs.replace(of_today, jaxlib=record.jaxlib) == record, "make conformance"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_is_carried_out_or_refused_as_unimplemented_in_words(version: str) -> None:
    record = kept(version)
    assert record is not None
    assert minor(record.jaxlib) == version
    assert record.protocol.least <= record.protocol.agreed <= record.protocol.most
    refusals = {kind.answer for kind in record.kinds.values()} - {CARRIED_OUT}
    assert all(each.startswith("12: ") and len(each.split()) > 5 for each in refusals), refusals
    assert all(kind.answer == CARRIED_OUT for kind in record.kinds.values() if kind.sent)


def test_the_page_has_the_table_of_the_records() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "make conformance"
