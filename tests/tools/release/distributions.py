"""Builds the distributions of a tree: an sdist, of it a wheel for each kind of machine, a chart."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Machine -> the variables that build.py reads. The last is for every other machine: XLA computes.
MACHINES: Mapping[str, Mapping[str, str]] = {
    "x86_64": {"SAX_BUILD_CPU_MACHINE": "x86_64"},
    "aarch64": {"SAX_BUILD_CPU_MACHINE": "aarch64"},
    "any": {"SAX_BUILD_CPU_KERNELS": "none"},
}
THIS_MACHINE: Mapping[str, str] = {}
# The seconds that files in archives bear: the same tree makes the same wheels.
_EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
SUMS = "SHA256SUMS"
_LIBRARY = "model_server/kernels/cpu/_native.so"
_PROMISE = re.compile(r"-manylinux_2_(\d+)_(\w+)\.whl$")
_ELF = {"x86_64": 62, "aarch64": 183}  # e_machine, a u16 at byte 18


def build_sdist(tree: Path, to: Path) -> Path:
    """Build the sdist of a tree, which is left as it is."""
    _python(("-m", "build", "--sdist", "--no-isolation", "--outdir", str(to), str(tree)), {})
    (made,) = to.glob("*.tar.gz")
    return made


def build_wheel(tree: Path, to: Path, variables: Mapping[str, str], commit: str = "") -> Path:
    """Build a wheel in a tree with the compiler that `variables` choose; returns its file."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        _python(
            (*words, "--wheel-dir", folder, str(tree)), {**variables, "SAX_BUILD_COMMIT": commit}
        )
        (made,) = Path(folder).glob("*.whl")
        to.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, to / made.name))


def build_wheels(sdist: Path, to: Path, machines: Iterable[str], commit: str) -> list[Path]:
    """Build the wheels of these machines from an sdist, so that it is known to be whole."""
    made: list[Path] = []
    for machine in machines:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as packed:
            packed.extractall(folder, filter="data")
            (tree,) = Path(folder).iterdir()
            made.append(build_wheel(tree, to, MACHINES[machine], commit))
    return made


def build_chart(tree: Path, to: Path) -> Path:
    """Pack the Helm chart of a tree; returns its file."""
    import helm_python as helm  # 80 MB, which only those who release have

    return Path(helm.package(tree / "k8s", destination=to))


def wrong_with(wheel: Path) -> list[str]:
    """Return what a wheel lacks or has too much of, by its name."""
    packed = zipfile.ZipFile(wheel)
    names = packed.namelist()
    native = [name for name in names if name.startswith(_LIBRARY.removesuffix(".so"))]
    wanted = [] if wheel.name.endswith("-any.whl") else [_LIBRARY]
    needed = {"sax/commit.txt", "sax/py.typed", "k8s/control/http.yaml", "sax/look/look.css"}
    foreign = {name.partition("/")[0] for name in names} & {"tests", "docs", "build"}
    wrong = [f"has {native} of the native kernels"] if native != wanted else []
    if native == [_LIBRARY] and (promised := _PROMISE.search(wheel.name)):
        wrong += wrong_with_library(packed.read(_LIBRARY), promised[2], int(promised[1]))
    wrong += [f"lacks {name}" for name in sorted(needed - {*names})]
    wrong += [f"has {name}/" for name in sorted(foreign)]
    return [f"{wheel.name} {each}" for each in wrong]


def wrong_with_library(library: bytes, machine: str, glibc: int) -> Iterator[str]:
    """Say why a library does not run on every Linux of a machine with glibc 2.`glibc` or newer."""
    if library[:4] != b"\x7fELF" or int.from_bytes(library[18:20], "little") != _ELF[machine]:
        yield f"has a library that is not for {machine}"
    newest = max(map(int, re.findall(rb"GLIBC_2\.(\d+)", library)), default=0)
    if newest > glibc:
        yield f"has a library that needs glibc 2.{newest}"
    if found := re.search(rb"lib(?:std)?c\+\+[\w.-]*\.so", library):
        yield f"has a library that needs {found[0].decode()}, which a machine may lack"


def write_sums(folder: Path) -> Path:
    """Write the SHA-256 of every other file of a folder, as sha256sum reads them."""
    lines = (f"{digest}  {name}\n" for name, digest in sums_of(folder).items())
    (folder / SUMS).write_text("".join(lines))
    return folder / SUMS


def sums_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a folder, in hexadecimal, by their names."""
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != SUMS)
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def _python(words: Iterable[str], variables: Mapping[str, str]) -> None:
    environ = {**os.environ, **_EPOCH, **variables}
    subprocess.run((sys.executable, *words), env=environ, check=True)
