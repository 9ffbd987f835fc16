"""Looks at a machine without jax: its processor, memory, devices, ports, packages and folders.

A fact that the operating system does not tell is empty or 0.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sax import config
from sax.cli.commands.chat import history_file
from sax.cli.local.cell_plan import default_compile_cache, is_taken
from sax.cli.local.demo_model import model_folder
from sax.host import machine_memory

# Instruction sets that products of matrices are written for, the fastest first, as Linux says them.
_UNITS = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "i8mm", "bf16", "asimd")
_PORTS = {
    config.GATEWAY_PORT: "gateway",
    config.ADMIN_PORT: "admin server",
    config.ADMIN_STATUS_PORT: "its status page",
    config.MODEL_PORT: "model server",
    config.MODEL_METRICS_PORT: "its metrics",
}
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_ANSWERS_S = 5.0  # a driver that is there


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A folder in which sax keeps something of the user's."""

    what: str
    place: Path
    size: int  # bytes
    made_again: bool  # by sax, which alone has it, when it is missing


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """This machine, as `look` saw it."""

    system: str
    python: str
    processor: str
    units: tuple[str, ...]  # of _UNITS
    cores: float  # that this process may use
    memory: int  # bytes
    available: int  # bytes of it that new processes may have
    gpus: tuple[str, ...]  # names, with memory and driver
    tpus: int  # chips
    packages: Mapping[str, str]  # of _PACKAGES: version
    taken: Mapping[int, str]  # ports in use: what a cell has them for
    folders: tuple[KeptFolder, ...]
    free_disk: int  # bytes, where models are kept


def look(environ: Mapping[str, str] = os.environ) -> ThisMachine:
    """Read all of it; takes as long as walking the caches does."""
    cpu = _text(Path("/proc/cpuinfo"))
    memory = _memory()
    folders = tuple(kept_folders(environ))
    return ThisMachine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        processor=processor_of(cpu) or platform.processor() or platform.machine(),
        units=units_of(cpu),
        cores=_cores(_text(Path("/sys/fs/cgroup/cpu.max"))),
        memory=memory,
        available=min(memory, available_of(_text(Path("/proc/meminfo"))) or memory),
        gpus=tuple(_gpus()),
        tpus=_tpus(Path("/dev")),
        packages=dict(_versions(_PACKAGES)),
        taken={port: what for port, what in _PORTS.items() if is_taken("127.0.0.1", port)},
        folders=folders,
        free_disk=_free(folders[0].place),
    )


def processor_of(cpuinfo: str) -> str:
    """Return the name of the processor in the text of /proc/cpuinfo; "" if it has none."""
    names = (line.partition(":")[2] for line in cpuinfo.splitlines() if "model name" in line)
    return next(names, "").strip()


def units_of(cpuinfo: str) -> tuple[str, ...]:
    lines = (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    flags = next(lines, "").split()
    return tuple(unit for unit in _UNITS if unit in flags)


def available_of(meminfo: str) -> int:
    """Return the available bytes in the text of /proc/meminfo; 0 if it does not tell."""
    lines = (line.split() for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return next((int(kibibytes) * 1024 for _, kibibytes, *_ in lines), 0)


def cores_within(quota: str, cores: int) -> float:
    """Return the cores that a text of cpu.max lets a container have, at most those there are."""
    allowed, _, period = quota.strip().partition(" ")
    return min(cores, int(allowed) / int(period)) if allowed.isdigit() else cores


def kept_folders(environ: Mapping[str, str]) -> Iterator[KeptFolder]:
    """Return the folders of sax in the user's home, those first that models are kept in."""
    home = environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    places = (
        ("models of a Hugging Face hub", Path(environ.get("HF_HUB_CACHE") or f"{home}/hub"), False),
        ("demo model", model_folder(environ), True),
        ("compiled programs", default_compile_cache(environ), True),
        ("lines of chats", history_file(environ).parent, False),
    )
    for what, place, made_again in places:
        yield KeptFolder(what, place, size_of(place), made_again)


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder; links count nothing."""
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.exists() and not file.is_symlink())


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _memory() -> int:
    return machine_memory() if hasattr(os, "sysconf") else 0  # Windows does not tell it so


def _cores(quota: str) -> float:
    mine = getattr(os, "sched_getaffinity", None)
    return cores_within(quota, len(mine(0)) if mine else os.cpu_count() or 1)


def _gpus() -> Iterator[str]:
    """Ask NVIDIA's driver; other makers' GPUs are of no use to jax's plugins for CUDA."""
    if (program := shutil.which("nvidia-smi")) is None:
        return
    wanted = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(
            (program, *wanted), capture_output=True, text=True, timeout=_ANSWERS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0:
        yield from (line.strip() for line in done.stdout.splitlines() if line.strip())


def _tpus(devices: Path) -> int:
    """Return the number of chips: accel0 ... on older hosts, vfio/0 ... on newer ones."""
    return len([*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")])


def _versions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _free(place: Path) -> int:
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return shutil.disk_usage(there).free
