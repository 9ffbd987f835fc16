"""The object with AMX's instructions, as a compiler makes it: run by the unit, or instruction by
instruction by the model of it (`amx_object.cc`)."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model_server.kernels.cpu import build

HERE = Path(__file__).parent
SOURCES = Path(build.__file__).parent / "src"
COMPILERS = ("g++", "clang++")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="signals are those of Linux")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is a unit of x86-64")
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_object_for_the_unit_has_the_bits_of_the_model(compiler: str, tmp_path: Path) -> None:
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"there is no {compiler}")
    how = [found, *build.FLAGS, "-O3", f"-I{SOURCES}"]
    objects = [tmp_path / f"{name}.o" for name in build.TILES["x86_64"]]
    for file, (name, flags) in zip(objects, build.TILES["x86_64"].items(), strict=True):
        source = SOURCES / "amx.cc"
        run(*how, f"-DSAX_ISA={name}", *flags, "-c", str(source), "-o", str(file))
    program = tmp_path / "amx_object"
    run(*how, str(HERE / "amx_object.cc"), *map(str, objects), "-o", str(program))
    told = run(str(program))
    if told.startswith("skipped: "):
        pytest.skip(told)
    assert told.startswith("0 differences")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
