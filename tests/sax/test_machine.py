"""What this machine has."""

from __future__ import annotations

from pathlib import Path

from sax.host import machine_memory


def test_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    cgroup = tmp_path / "memory.max"
    physical = machine_memory(cgroup)
    cgroup.write_text("1048576\n")
    assert machine_memory(cgroup) == 1048576
    cgroup.write_text("max\n")
    assert machine_memory(cgroup) == physical > 1048576
