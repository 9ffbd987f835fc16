"""Products with the instructions of arm64 machines, on such a machine or emulated by qemu."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path

import pytest

from model_server.kernels.cpu import build
from tests.model_server.kernels.cpu.test_amx_object import HERE, SOURCES, run

_EMULATOR = "qemu-aarch64-static"  # Debian's qemu-user-static


@pytest.mark.nightly
def test_products_on_arm_are_those_of_numbers_in_double_and_a_row_has_its_bits_alone(
    tmp_path: Path,
) -> None:
    """Rows that are multiplied two at a time by BFMMLA and USMMLA, one by one, and in plain C++."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs Zig's compiler: pip install ziglang")
    emulator = [] if platform.machine() == "aarch64" else [shutil.which(_EMULATOR), "-cpu", "max"]
    if None in emulator:
        pytest.skip(f"needs {_EMULATOR}: apt-get install qemu-user-static")
    zig = [sys.executable, "-m", "ziglang", "c++", "--target=aarch64-linux-musl", "-mcpu=baseline"]
    how = [*zig, *build.FLAGS, "-O2", "-fno-sanitize=undefined", f"-I{SOURCES}"]
    objects = [tmp_path / f"{name}.o" for name in build.INSTRUCTIONS["aarch64"]]
    for file, (name, flags) in zip(objects, build.INSTRUCTIONS["aarch64"].items(), strict=True):
        source = str(SOURCES / "isa.cc")
        run(*how, *flags, f"-DSAX_ISA={name}", "-c", source, "-o", str(file))
    program = tmp_path / "arm_products"
    run(*how, str(HERE / "arm_products.cc"), *map(str, objects), "-static", "-o", str(program))
    assert run(*map(str, emulator), str(program)).startswith("0 of ")
