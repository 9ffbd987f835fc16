"""Builds the native kernels when sax is installed: one object per instruction set, one library.

Uses the compiler of the machine, or Zig's from PyPI (`pip install ziglang`). Without a compiler or
jaxlib's headers the installation goes on, and the server uses XLA's kernels.

SAX_BUILD_CPU_KERNELS=none leaves the library out. SAX_BUILD_CPU_KERNELS=quick compiles the fastest
instruction set of this machine only, with few optimisations: a tenth of the work, for quick tests.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FLAGS = [
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
_OLDEST_GLIBC = "2.27"  # as jaxlib's wheels
_HOW_MUCH = "SAX_BUILD_CPU_KERNELS"
# Flags of each instruction set, the fastest first, by the machine it is of; src/chosen.cc finds
# which one runs.
INSTRUCTIONS = {
    "x86_64": {
        "avx512_bf16": [*_AVX512, "-mavx512bf16"],
        "avx512_vnni": _AVX512,
        "avx2": _AVX2,
        "portable": [],
    },
    "aarch64": {"neon": [], "portable": ["-DSAX_PORTABLE"]},
}
# Flags of the products on matrix units, which are added to the fastest of those sets; the model of
# a unit is for tests and runs anywhere.
_AMX = "amx"
_MODEL = {"amx_model": ["-DSAX_TILE_MODEL", "-DSAX_PORTABLE"]}
TILES = {
    "x86_64": {
        _AMX: [*_AVX512, "-mavx512bf16", *(f"-mamx-{part}" for part in ("tile", "bf16", "int8"))],
        **_MODEL,
    }
}
_PORTABLE: dict[str, list[str]] = {"portable": []}  # of any other machine
_AS_LINUX_SAYS = {"-mavx512vnni": "avx512_vnni", "-mavx512bf16": "avx512_bf16"}


class BuildNative(build_ext):
    """As setuptools builds an extension, but one source is compiled several times."""

    def build_extension(self, ext: Extension) -> None:
        if os.environ.get(_HOW_MUCH) == "none":
            return
        self._use_zig_without_compiler()
        quick = os.environ.get(_HOW_MUCH) == "quick"
        folder = Path(self.build_temp) / "native"
        headers = _headers_of_jaxlib()
        how = ["-O1", "-g0", "-w"] if quick else ["-O1"] if self.debug else ["-O3", "-g0"]

        def compile_(source: str, name: str, flags: list[str]) -> list[str]:
            return self.compiler.compile(
                [source],
                output_dir=str(folder / name),
                extra_postargs=["-isystem", headers, *how, *FLAGS, *flags],
            )

        def try_(source: str, name: str, flags: list[str]) -> list[str]:
            try:
                return compile_(source, name, flags)
            except CompileError:
                if name != _AMX:
                    raise
                self.warn("this compiler does not know AMX: its machines use avx512_bf16")
                return compile_(source, name, [flag for flag in flags if flag.startswith("-D")])

        sets = _sets_of_this_machine() if quick else INSTRUCTIONS.get(_machine(), _PORTABLE)
        if len(sets) == 1:
            how += [f"-DSAX_ONLY={name}" for name in sets]
        tiles = {} if quick else TILES.get(_machine(), _MODEL)
        if not tiles:
            how.append("-DSAX_NO_TILES")
        jobs = [job for source in ext.sources for job in _jobs(source, sets, tiles)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(try_, *zip(*jobs, strict=True)))
        objects = [each for one in made for each in one]
        without_symbols = ["-s"] if sys.platform == "linux" and not self.debug else []
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=["-pthread", *without_symbols],
            target_lang="c++",
        )

    def _use_zig_without_compiler(self) -> None:
        if shutil.which(self.compiler.compiler_cxx[0]) or not importlib.util.find_spec("ziglang"):
            return
        zig = [sys.executable, "-m", "ziglang", "c++", *_zig_flags()]
        position, shared = [*zig, "-fPIC"], [*zig, "-shared"]
        self.compiler.set_executables(
            compiler=zig,
            compiler_so=position,
            compiler_so_cxx=position,
            compiler_cxx=zig,
            linker_so=shared,
            linker_so_cxx=shared,
            linker_exe=zig,
            linker_exe_cxx=zig,
        )


def _jobs(
    source: str, sets: dict[str, list[str]], tiles: dict[str, list[str]]
) -> list[tuple[str, str, list[str]]]:
    """Return source, folder of the object and flags of each compilation."""
    several = {"isa.cc": sets, "amx.cc": tiles}.get(Path(source).name)
    if several is None:
        return [(source, "common", [])]
    return [(source, name, [f"-DSAX_ISA={name}", *flags]) for name, flags in several.items()]


def _sets_of_this_machine() -> dict[str, list[str]]:
    """Return the fastest instruction set that this machine has; all where Linux does not tell."""
    sets = INSTRUCTIONS.get(_machine(), _PORTABLE)
    try:
        told = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return sets
    for name, flags in sets.items():
        needed = [flag for flag in flags if flag.startswith("-m") and "=" not in flag]
        if all(_AS_LINUX_SAYS.get(flag, flag.removeprefix("-m")) in told for flag in needed):
            return {name: flags}
    return sets


def _zig_flags() -> list[str]:
    """Flags without which Zig makes a library for this very CPU and the newest glibc."""
    own = [f"--target={_machine()}-linux-gnu.{_OLDEST_GLIBC}"] if sys.platform == "linux" else []
    return [*own, "-mcpu=baseline", "-fno-sanitize=undefined"]


def _machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _headers_of_jaxlib() -> str:
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise CompileError("the native CPU kernels need jaxlib's headers: pip install jaxlib")
    return str(Path(found.origin).parent / "include")
