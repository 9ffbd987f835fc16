"""What a machine tells is read as Linux writes it, and is empty where it tells nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sax.cli.doctor.machine import (
    KeptFolder,
    ThisMachine,
    available_of,
    cores_within,
    diagnose,
    kept_folders,
    look,
    processor_of,
    size_of,
    units_of,
)
from sax.distribution import how_to_install
from sax.finding import OK, PROBLEM, WARNING, Finding, worst
from tests.each_case import each_case

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


GIB = 2**30
WELL = ThisMachine(
    system="Linux 6.1 x86_64",
    python="3.11.9",
    processor="A processor",
    units=("avx512_bf16", "avx2"),
    cores=8,
    memory=16 * GIB,
    available=10 * GIB,
    gpus=(),
    tpus=0,
    packages={"jax": "0.10.2", "jaxlib": "0.10.2"},
    taken={},
    folders=(KeptFolder("demo model", Path("/home/me/.cache/sax/models"), 3 * 2**20, True),),
    free_disk=50 * GIB,
)
GPU = "NVIDIA H200, 143771 MiB, 570.1"


def about(name: str, machine: ThisMachine) -> Finding:
    (found,) = [each for each in diagnose(machine) if each.about == name]
    return found


def test_a_machine_that_lacks_nothing_has_no_warnings() -> None:
    found = diagnose(WELL)
    assert worst(found) == OK
    assert [each.about for each in found] == [
        *("jax", "processor", "memory", "accelerators", "ports", "disk", "demo model"),
    ]


def test_memory_is_told_as_the_models_that_fit_into_it() -> None:
    text = about("memory", WELL).text
    assert "16.0 GiB, 10.0 GiB of it free" in text
    assert "up to about 3.2B parameters, 11.5B with" in text  # 0.6 of 10.7 GB by 2 and 0.56 bytes


@each_case(
    "name, changes, level, remedy",
    [
        ("jax", {"packages": {}}, WARNING, lambda: how_to_install("cpu")),
        ("processor", {"units": ("avx512f",)}, WARNING, lambda: "AVX2"),
        ("memory", {"available": GIB}, WARNING, lambda: "free 2 GiB"),
        ("GPU", {"gpus": (GPU,)}, WARNING, lambda: how_to_install("cuda")),
        ("TPU", {"tpus": 4}, WARNING, lambda: how_to_install("tpu")),
        ("ports", {"taken": {8888: "gateway"}}, WARNING, lambda: "`sax status`"),
        ("disk", {"free_disk": 3 * GIB}, WARNING, lambda: "`sax rm`"),
        ("disk", {"free_disk": GIB // 2}, PROBLEM, lambda: "HF_HOME"),
    ],
)
def test_what_a_machine_lacks_is_told_with_its_remedy(
    name: str, changes: dict[str, object], level: str, remedy: Callable[[], str]
) -> None:
    found = about(name, replace(WELL, **changes))  # pyright: ignore[reportArgumentType]
    assert found.level == level
    assert remedy() in found.remedy


def test_devices_with_their_plugin_are_told_and_nothing_more() -> None:
    with_cuda = replace(WELL, gpus=(GPU,), packages={**WELL.packages, "jax-cuda12-plugin": "1"})
    assert about("GPU", with_cuda) == Finding(OK, "GPU", f"{GPU}: jax-cuda12-plugin 1")
    with_tpu = replace(WELL, tpus=4, packages={**WELL.packages, "libtpu": "0.0.42"})
    assert about("TPU", with_tpu) == Finding(OK, "TPU", "4 chips: libtpu 0.0.42")


def test_a_system_that_does_not_tell_its_memory_is_no_trouble() -> None:
    assert about("memory", replace(WELL, memory=0, available=0)).level == OK


def test_an_empty_folder_is_not_told_of() -> None:
    (folder,) = WELL.folders
    names = [each.about for each in diagnose(replace(WELL, folders=(replace(folder, size=0),)))]
    assert "demo model" not in names
