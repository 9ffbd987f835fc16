"""docs/reference/coming_from_saxml.md: each row with a promise names a test that exists."""

from __future__ import annotations

import ast
import shlex
from functools import cache

import pytest

from sax.cli.saxutil.go_flags import parse_flags
from sax.cli.saxutil.main import GLOBAL_FLAGS, VERBS
from tests.docs.parity import PAGE, ROOT, ROWS, VERDICTS, ParityRow, written


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    assert "| Admin.Publish |" in page
    assert written(page) == page, "run 'make docs'"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.area)
def test_a_row_names_tests_that_exist(row: ParityRow) -> None:
    assert row.verdict in VERDICTS
    assert row.tests or row.verdict not in ("same", "better")
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in names_in(path), f"{path} has no {name}"


def test_every_line_of_saxutil_on_the_page_is_one_that_it_takes() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("saxutil ")]
    assert len(lines) >= 4
    for line in lines:
        name, *rest = parse_flags(GLOBAL_FLAGS, shlex.split(line)[1:]).words
        VERBS[name].check(parse_flags(VERBS[name].flags, rest).words)


def test_no_row_breaks_the_table() -> None:
    assert all("|" not in f"{row.area}{row.saxml}{row.here}" for row in ROWS)
    assert len({row.area for row in ROWS}) == len(ROWS)
