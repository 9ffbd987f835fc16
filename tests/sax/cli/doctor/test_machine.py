"""What a machine tells is read as Linux writes it, and is empty where it tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax.cli.doctor.machine import (
    available_of,
    cores_within,
    kept_folders,
    look,
    processor_of,
    size_of,
    units_of,
)

CPUINFO = """processor	: 0
model name	: AMD EPYC 9B14
flags		: fpu sse2 avx2 avx512f avx512_vnni avx512_bf16 amx_tile
processor	: 1
model name	: AMD EPYC 9B14
"""


def test_the_processor_and_its_instruction_sets_are_those_of_cpuinfo() -> None:
    assert processor_of(CPUINFO) == "AMD EPYC 9B14"
    assert units_of(CPUINFO) == ("avx512_bf16", "avx512_vnni", "avx512f", "avx2")
    assert units_of("Features	: fp asimd i8mm bf16\n") == ("i8mm", "bf16", "asimd")
    assert (processor_of(""), units_of("")) == ("", ())


def test_free_memory_is_what_new_processes_may_have() -> None:
    assert available_of("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2048 * 1024
    assert available_of("") == 0


def test_a_container_has_the_cores_of_its_quota() -> None:
    assert cores_within("150000 100000\n", 8) == 1.5
    assert cores_within("900000 100000\n", 8) == 8
    assert cores_within("max 100000\n", 8) == 8
    assert cores_within("", 8) == 8


def test_a_folder_is_as_large_as_its_files_and_links_count_nothing(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"x" * 24)
    (tmp_path / "link").symlink_to(tmp_path / "blobs" / "a")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    assert size_of(tmp_path) == 1024
    assert size_of(tmp_path / "nothing") == 0


def test_the_kept_folders_follow_the_variables_that_move_them(tmp_path: Path) -> None:
    variables = {
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    assert [each.place.relative_to(tmp_path).as_posix() for each in kept_folders(variables)] == [
        "hf/hub",
        "cache/sax/models",
        "cache/sax/compiled",
        "state/sax",
    ]
    assert [each.made_again for each in kept_folders(variables)] == [False, True, True, False]


def test_this_machine_tells_something_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no driver answers
    found = look({"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.cores > 0
    assert 0 < found.available <= found.memory
    assert found.free_disk > 0
    assert (found.gpus, [each.size for each in found.folders[:3]]) == ((), [0, 0, 0])
