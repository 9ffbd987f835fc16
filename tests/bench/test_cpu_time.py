"""Processes and their descendants."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.bench.cpu_time import descendants, trees


def test_descendants_are_found_through_their_parents() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 7}
    assert descendants(frozenset({2}), parents) == {2, 3, 4}
    assert descendants(frozenset({5, 7}), parents) == {5, 6, 7}


def test_a_child_of_this_process_belongs_to_its_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= trees([os.getpid()])
        child.communicate(b"\n")
