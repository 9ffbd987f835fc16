"""This machine: the loop that servers run on, its memory, and what is installed here.

What is said where something is not installed: tests/test_dependencies.py.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from sax.host import loop_factory, machine_memory, missing_model_server


def test_a_server_runs_on_uvloop_where_there_is_one():
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(name()).partition(".")[0] == "uvloop"


def test_where_jax_is_nothing_is_missing() -> None:
    assert missing_model_server("`sax up`") is None


def test_where_it_is_not_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert missing_model_server("`sax up`") == (
        "`sax up` needs jax, which is not installed here: pip install '.[cpu]' in a clone of sax"
    )


def test_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    cgroup = tmp_path / "memory.max"
    physical = machine_memory(cgroup)
    cgroup.write_text("1048576\n")
    assert machine_memory(cgroup) == 1048576
    cgroup.write_text("max\n")
    assert machine_memory(cgroup) == physical > 1048576
