"""Tables put into docs/benchmarks.md, and those that stay when the others are made again."""

from __future__ import annotations

from tests.bench.page import tables_of_their_own, with_tables

PAGE = "# Head\n\nMachine: here.\n\n## A\n\nold\n\n## B\n\nMachine: there.\n\nb\n"


def test_a_table_replaces_its_like_and_a_new_one_comes_last() -> None:
    made = with_tables(PAGE, ["## A\n\nnew\n", "## C\n\nc\n"], "Machine: here.\n")
    assert "old" not in made
    assert [line for line in made.splitlines() if line.startswith("## ")] == [
        "## A",
        "## B",
        "## C",
    ]


def test_tables_may_come_first_in_their_order() -> None:
    made = with_tables(PAGE, ["## C\n\nc\n", "## B\n\nnew\n"], "", first=True)
    assert [line for line in made.splitlines() if line.startswith("## ")] == [
        "## C",
        "## B",
        "## A",
    ]
    assert made.startswith("# Head\n\nMachine: here.\n\n## C\n\nc\n")


def test_a_table_from_elsewhere_names_its_machine() -> None:
    assert "## C\n\nMachine: far.\n\nc\n" in with_tables(PAGE, ["## C\n\nc\n"], "Machine: far.\n")


def test_tables_that_name_their_machine_are_of_their_own() -> None:
    assert tables_of_their_own(PAGE) == ["## B\n\nMachine: there.\n\nb\n"]
