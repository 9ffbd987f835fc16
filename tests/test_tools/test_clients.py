"""docs/reference/compatibility.md is what the last run's record says, which has every check."""

from __future__ import annotations

from pathlib import Path

from tests.tools.clients.clients import CLIENTS, HERE
from tests.tools.clients.page import PAGE, page
from tests.tools.clients.record import PASSED, CheckResult, read_record, write_record


def test_the_page_is_written_from_the_record() -> None:
    wanted = page(read_record()).rstrip("\n") + "\n"
    assert PAGE.read_text() == wanted, "run python -m tests.tools.clients.page"


def test_the_record_is_of_every_check_of_every_client() -> None:
    recorded = [(each.client, each.check) for each in read_record()]
    assert recorded == [(client.name, check) for client in CLIENTS for check in client.checks()]


def test_every_recorded_check_passed() -> None:
    assert [each for each in read_record() if each.result != PASSED] == []


def test_every_program_is_of_a_client_and_says_what_it_runs() -> None:
    assert {client.path for client in CLIENTS} == set((HERE / "programs").glob("*.py"))
    assert all(text for client in CLIENTS for text in client.checks().values())


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    results = [CheckResult("openai", "1.2", "chat", "AssertionError: a | b\n")]
    write_record(results, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == results


def test_a_failure_is_told_in_one_cell_of_its_client() -> None:
    text = page([CheckResult("openai", "1.2", "chat", "AssertionError:\n a | b")])
    assert "| [openai](#openai) | 1.2 | 0 of 1 |" in text
    assert "| AssertionError: a \\| b |" in text
