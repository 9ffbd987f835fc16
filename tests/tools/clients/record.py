"""The record of a run of all clients, from which docs/reference/compatibility.md is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.tools.clients.clients import HERE

RECORD = HERE / "record.json"
PASSED = "passed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one client."""

    client: str
    version: str
    check: str
    result: str  # PASSED, or the failure's traceback


def read_record(path: Path = RECORD) -> list[CheckResult]:
    return [CheckResult(**each) for each in json.loads(path.read_text())]


def write_record(results: list[CheckResult], path: Path = RECORD) -> None:
    path.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")


def rows(results: list[CheckResult], told: Mapping[str, Mapping[str, str]]) -> Iterator[list[str]]:
    """A row per check: client, version, what was run, result. `told`: client -> check -> text."""
    for each in results:
        yield [each.client, each.version, told[each.client][each.check], each.result]
