"""Builds the native kernels when sax is installed: one object per instruction set, one library.

Uses the compiler of the machine, or Zig's from PyPI (`pip install ziglang`). Without a compiler or
jaxlib's headers the installation goes on, and the server uses XLA's kernels.

SAX_BUILD_CPU_KERNELS=none leaves the library out. SAX_BUILD_CPU_KERNELS=quick compiles the fastest
instruction set of this machine only, with few optimisations: a tenth of the work, for quick tests.
SAX_BUILD_CPU_MACHINE=x86_64 or aarch64 compiles with Zig for any Linux of that machine, and names
the wheel so. SAX_BUILD_COMMIT is the commit that a wheel says it was built of; default: git's.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
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
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # of gcc's own headers
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [
    *_AVX2,
    *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")),
    "-mprefer-vector-width=512",
]
_OLDEST_GLIBC = "2.27"  # as jaxlib's wheels
_HOW_MUCH = "SAX_BUILD_CPU_KERNELS"
_MACHINE = "SAX_BUILD_CPU_MACHINE"
_COMMIT = "SAX_BUILD_COMMIT"
# Flags of each instruction set, the fastest first, by the machine it is of; src/chosen.cc finds
# which one runs.
INSTRUCTIONS = {
    "x86_64": {
        "avx512_bf16": [*_AVX512, "-mavx512bf16"],
        "avx512_vnni": _AVX512,
        "avx2": _AVX2,
        "portable": [],
    },
    "aarch64": {
        "neon_matrices": ["-mcpu=generic+dotprod+bf16+i8mm"],
        "neon": [],
        "portable": ["-DSAX_PORTABLE"],
    },
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
# What machines with these use after a compiler that does not know them, and flags that name it so.
_WITHOUT: dict[str, tuple[str, list[str]]] = {
    _AMX: ("avx512_bf16", []),
    "neon_matrices": ("neon", ["-DSAX_NAME=neon"]),
}
_PORTABLE: dict[str, list[str]] = {"portable": []}  # of any other machine
_AS_LINUX_SAYS = {
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "dotprod": "asimddp",
}


class MachineWheel(bdist_wheel):
    """A wheel for one type of machine and every Python: the library is no module of Python."""

    def finalize_options(self) -> None:
        if os.environ.get(_HOW_MUCH) == "none":
            self.distribution.ext_modules = []
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, place = super().get_tag()
        if self.root_is_pure:
            return python, abi, place
        named = os.environ.get(_MACHINE)
        anywhere = f"manylinux_{_OLDEST_GLIBC.replace('.', '_')}_{named}"
        return "py3", "none", anywhere if named else place


class StampedPackages(build_py):
    """Writes the commit that a wheel is built of into it, where sax/distribution.py reads it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        stamp = Path(self.build_lib) / "sax" / "commit.txt"
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(f"{_commit()}\n")


def _commit() -> str:
    """Return the commit of the sources, "-dirty" at its end if they differ; "" if unknown."""
    given = os.environ.get(_COMMIT, "")
    if given or not Path(".git").exists():
        return given.removeprefix("unknown")
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class BuildNative(build_ext):
    """As setuptools builds an extension, but one source is compiled several times."""

    def get_ext_filename(self, fullname: str) -> str:
        suffix = ".pyd" if sys.platform == "win32" else ".so"
        return os.path.join(*fullname.split(".")) + suffix

    def build_extension(self, ext: Extension) -> None:
        if os.environ.get(_HOW_MUCH) == "none":
            return
        ext.optional = _MACHINE not in os.environ  # a wheel for others must not lack it
        self._use_zig_if_needed()
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
                if name not in _WITHOUT:
                    raise
                instead, named = _WITHOUT[name]
                self.warn(f"this compiler does not know {name}: its machines use {instead}")
                kept = [flag for flag in flags if flag.startswith("-D")]
                return compile_(source, name, [*kept, *named])

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
        without_symbols = ["-s"] if _for_linux() and not self.debug else []
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=["-pthread", *without_symbols],
            target_lang="c++",
        )

    def _use_zig_if_needed(self) -> None:
        needed = _MACHINE in os.environ
        if not needed and shutil.which(self.compiler.compiler_cxx[0]):
            return
        if not importlib.util.find_spec("ziglang"):
            if needed:
                raise CompileError(f"{_MACHINE} needs Zig's compiler: pip install ziglang")
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
        if all(_AS_LINUX_SAYS.get(part, part) in told for part in _parts_of(flags)):
            return {name: flags}
    return sets


def _parts_of(flags: list[str]) -> list[str]:
    """Return the parts of an instruction set that these flags turn on."""
    parts: list[str] = []
    for flag in flags:
        if flag.startswith("-mcpu="):
            parts += flag.split("+")[1:]
        elif flag.startswith("-m") and "=" not in flag:
            parts.append(flag.removeprefix("-m"))
    return parts


def _zig_flags() -> list[str]:
    """Flags without which Zig makes a library for this very CPU and the newest glibc."""
    own = [f"--target={_machine()}-linux-gnu.{_OLDEST_GLIBC}"] if _for_linux() else []
    return [*own, "-mcpu=baseline", "-fno-sanitize=undefined"]


def _for_linux() -> bool:
    return sys.platform == "linux" or _MACHINE in os.environ


def _machine() -> str:
    name = os.environ.get(_MACHINE) or platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _headers_of_jaxlib() -> str:
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise CompileError("the native CPU kernels need jaxlib's headers: pip install jaxlib")
    return str(Path(found.origin).parent / "include")
