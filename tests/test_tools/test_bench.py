"""Tables put into docs/reference/benchmarks.md, those that stay, and CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.tools.bench.cpu_time import descendants, trees
from tests.tools.bench.page import tables_of_their_own, with_tables

PAGE = "# Head\n\nMachine: here.\n\n## A\n\nold\n\n## B\n\nMachine: there.\n\nb\n"


def titles(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("## ")]


def test_a_table_replaces_its_like_and_a_new_one_comes_last() -> None:
    made = with_tables(PAGE, ["## A\n\nnew\n", "## C\n\nc\n"], "Machine: here.\n")
    assert "old" not in made
    assert titles(made) == ["## A", "## B", "## C"]


def test_tables_may_come_first_in_their_order() -> None:
    made = with_tables(PAGE, ["## C\n\nc\n", "## B\n\nnew\n"], "", first=True)
    assert titles(made) == ["## C", "## B", "## A"]
    assert made.startswith("# Head\n\nMachine: here.\n\n## C\n\nc\n")


def test_only_tables_from_elsewhere_name_their_machine() -> None:
    assert "## C\n\nMachine: far.\n\nc\n" in with_tables(PAGE, ["## C\n\nc\n"], "Machine: far.\n")
    assert tables_of_their_own(PAGE) == ["## B\n\nMachine: there.\n\nb\n"]


def test_descendants_are_found_through_their_parents() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 7}
    assert descendants(frozenset({2}), parents) == {2, 3, 4}
    assert descendants(frozenset({5, 7}), parents) == {5, 6, 7}


def test_a_child_of_this_process_belongs_to_its_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= trees([os.getpid()])
        child.communicate(b"\n")
