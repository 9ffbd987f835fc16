"""Builds the native kernels when sax is installed: one object per instruction set, one library.

Uses the compiler of the machine, or Zig's from PyPI (`pip install ziglang`). Without a compiler or
jaxlib's headers the installation goes on, and the server uses XLA's kernels.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

_FLAGS = [
    "-O3",
    "-std=c++20",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-warning-option",
    "-Wno-maybe-uninitialized",  # of gcc's own headers
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [
    *_AVX2,
    *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")),
    "-mprefer-vector-width=512",
]
# Flags of each instruction set, by the machine it is of; src/chosen.cc finds which one runs.
INSTRUCTIONS = {
    "x86_64": {
        "avx512_bf16": [*_AVX512, "-mavx512bf16"],
        "avx512_vnni": _AVX512,
        "avx2": _AVX2,
        "portable": [],
    },
    "aarch64": {"neon": [], "portable": ["-DSAX_PORTABLE"]},
}


class BuildNative(build_ext):
    """As setuptools builds an extension, but one source is compiled several times."""

    def build_extension(self, ext: Extension) -> None:
        self._use_zig_without_compiler()
        folder = Path(self.build_temp) / "native"
        headers = _headers_of_jaxlib()
        objects: list[str] = []

        def compile_(source: str, name: str, flags: list[str]) -> None:
            made = self.compiler.compile(
                [source],
                output_dir=str(folder / name),
                include_dirs=[headers],
                extra_postargs=[*_FLAGS, *flags, *(["-g0"] if not self.debug else [])],
            )
            objects.extend(made)

        for source in ext.sources:
            if Path(source).name != "isa.cc":
                compile_(source, "common", [])
                continue
            for name, flags in INSTRUCTIONS.get(_machine(), {"portable": []}).items():
                compile_(source, name, [f"-DSAX_ISA={name}", *flags])
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-pthread"], target_lang="c++"
        )

    def _use_zig_without_compiler(self) -> None:
        if shutil.which(self.compiler.compiler_cxx[0]) or not importlib.util.find_spec("ziglang"):
            return
        zig = [sys.executable, "-m", "ziglang", "c++"]
        self.compiler.set_executables(
            compiler=zig, compiler_so=[*zig, "-fPIC"], compiler_cxx=zig, linker_so=[*zig, "-shared"]
        )


def _machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _headers_of_jaxlib() -> str:
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise RuntimeError("the native CPU kernels need jaxlib's headers: pip install jaxlib")
    return str(Path(found.origin).parent / "include")
