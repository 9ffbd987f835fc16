"""Each lack of a machine is told with its remedy; a machine that lacks nothing has no warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sax.cli.doctor.findings import diagnose
from sax.cli.doctor.machine import KeptFolder, ThisMachine
from sax.distribution import how_to_install
from sax.finding import OK, PROBLEM, WARNING, Finding, worst
from tests.each_case import each_case

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
