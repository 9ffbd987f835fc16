"""`sax doctor`, `sax clean` and `sax --version`: what they print and do, without jax."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sax.cli.doctor import (
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
from sax.cli.main import app
from sax.distribution import how_to_install, version
from sax.finding import CHECKS, OK, PROBLEM, WARNING, Finding, worst
from tests.each_case import each_case
from tests.house import ROOT


@pytest.fixture(autouse=True)
def small_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp(name)))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def test_a_doctor_tells_of_everything_once_and_ends_well_without_problems() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(done.stdout)
    names = [each["about"] for each in found]
    assert {"jax", "processor", "memory", "ports", "disk", "kernels"} <= set(names)
    assert len(names) == len(set(names))
    assert done.exit_code == any(each["level"] == "problem" for each in found)
    plain = CliRunner().invoke(app, ["doctor"]).stdout
    assert all(f"  {name}: " in plain for name in names)


def test_what_can_be_made_again_is_removed_and_what_cannot_stays() -> None:
    folders = list(kept_folders(os.environ))
    for each in folders:
        each.place.mkdir(parents=True)
        (each.place / "file").write_bytes(b"x" * 1000)
    assert len(cleaned("--dry-run")) == 2
    assert all(each.place.exists() for each in folders)
    gone = cleaned()
    assert {Path(each["path"]) for each in gone} == {e.place for e in folders if e.made_again}
    assert [each["bytes"] for each in gone] == [1000, 1000]
    assert [each.place.exists() for each in folders] == [True, False, False, True]
    assert CliRunner().invoke(app, ["clean"]).stdout == "nothing to remove\n"


def test_what_cannot_be_removed_is_named() -> None:
    (*_, compiled, _) = kept_folders(os.environ)
    compiled.place.parent.mkdir(parents=True)
    compiled.place.write_bytes(b"a file in the place of the folder")
    done = CliRunner().invoke(app, ["clean"])
    assert (done.exit_code, str(compiled.place) in done.stderr) == (1, True), done.output


def cleaned(*words: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["clean", "--json", *words])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_version_is_told_with_its_build_kernels_and_jax() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0, done.output
    first, *rows = done.stdout.splitlines()
    assert first == f"sax {version()}"
    told = dict(re.fullmatch(r"  (\w+) +(.*)", row).groups() for row in rows)  # pyright: ignore
    assert told["build"] == f"the sources in {ROOT}"
    assert told["kernels"] == CHECKS["kernels"]().text
    assert told["jax"] == f"{version_of('jax')}, jaxlib {version_of('jaxlib')}"


@pytest.mark.extended
@pytest.mark.parametrize(("word", "loaded"), [("--version", "[]"), ("doctor", "['sax.cli.main']")])
def test_neither_imports_jax_and_the_version_no_commands(word: str, loaded: str) -> None:
    script = (
        "import sys\nfrom sax.cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([each for each in ('jax', 'jaxlib', 'sax.cli.main') if each in sys.modules])"
    )
    done = subprocess.run(
        (sys.executable, "-c", script, word), capture_output=True, text=True, cwd=ROOT
    )
    assert CHECKS["kernels"]().text in done.stdout
    assert done.stdout.splitlines()[-1] == loaded, done.stderr


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
