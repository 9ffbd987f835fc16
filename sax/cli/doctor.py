"""The commands about this machine: `doctor` looks at it, `clean` frees its disk."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from sax import config
from sax.cli.commands.chat import history_file
from sax.cli.local.cell_plan import default_compile_cache, is_taken
from sax.cli.local.demo_model import model_folder
from sax.command import CommandResult, findings_result
from sax.distribution import how_to_install
from sax.errors import Unavailable
from sax.finding import CHECKS, OK, PROBLEM, WARNING, Finding
from sax.format import human_bytes
from sax.host import machine_memory


def doctor() -> CommandResult:
    """Look at this machine and give a remedy for each thing that a cell lacks here.

    Looks at jax, the processor and its kernels, memory, GPUs and TPUs, ports, disk, and the folders
    that sax keeps things in. Changes nothing and asks no cell; `sax k8s doctor` looks at a cluster.
    Exit status: 0 no problems (warnings allowed), 1 problems found.

    \b
    Examples:
      sax doctor
      sax doctor --json
    """
    return findings_result([*diagnose(look()), *(check() for check in CHECKS.values())])


def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
) -> CommandResult:
    """Remove what sax keeps in your home folder and makes again when it is missing.

    That is the demo model and all compiled programs. No cell of yours may run meanwhile. What
    else is there stays: fetched models, which other tools share (`sax rm` removes one), lines that
    you typed in chats, and what a cell keeps in its own folder, `.sax`. `sax doctor` shows all.

    \b
    Examples:
      sax clean --dry-run
      sax clean
    """
    found = [each for each in kept_folders(os.environ) if each.made_again and each.place.exists()]
    for folder in () if dry_run else found:
        _remove(folder)
    value = [{"what": e.what, "path": str(e.place), "bytes": e.size} for e in found]
    verb = "would remove" if dry_run else "removed"
    told = (f"{verb} {each.what}, {human_bytes(each.size, 1)}: {each.place}" for each in found)
    return CommandResult(value, "\n".join(told) if found else "nothing to remove")


def _remove(folder: KeptFolder) -> None:
    try:
        shutil.rmtree(folder.place)
    except OSError as error:
        raise Unavailable(
            f"{error.filename or folder.place} cannot be removed: {error.strerror}"
        ) from None


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


_GIB = 2**30
_LEAST_DISK = 5 * _GIB  # a model of 1B parameters and its compiled programs
_LEAST_MEMORY = 2 * _GIB  # the demo model with its cell
_FOR_WEIGHTS = 0.6  # of the memory; the rest is for the KV cache and the processes
# Bytes of a parameter: as DTYPE's default, and with QUANTIZE="int4" and its scales.
_WHOLE, _IN_4_BITS = 2.0, 0.56
_FAST = {"amx_bf16", "avx512_bf16", "avx512_vnni", "avx2", "asimd"}
_CUDA = ("jax-cuda12-plugin", "jax-cuda13-plugin")


def diagnose(machine: ThisMachine) -> list[Finding]:
    """Return all findings, in the order in which one would change things."""
    return [
        _jax(machine),
        _processor(machine),
        _memory_finding(machine),
        *_accelerators(machine),
        _ports(machine),
        _disk(machine),
        *_folders(machine),
    ]


def _jax(machine: ThisMachine) -> Finding:
    place = f"Python {machine.python}, {machine.system}"
    if (jax := machine.packages.get("jax")) is None:
        text = f"not installed ({place}): this machine can ask a cell elsewhere, and run none"
        return Finding(WARNING, "jax", text, how_to_install("cpu"))
    return Finding(OK, "jax", f"{jax}, jaxlib {machine.packages.get('jaxlib', 'absent')}; {place}")


def _processor(machine: ThisMachine) -> Finding:
    units = ", ".join(machine.units) or "no instruction sets that sax knows"
    text = f"{machine.processor}: {machine.cores:g} cores, {units}"
    if machine.units and not _FAST & {*machine.units}:
        return Finding(WARNING, "processor", text, "serve on a processor with AVX2 or newer")
    return Finding(OK, "processor", text)


def _memory_finding(machine: ThisMachine) -> Finding:
    if not machine.memory:
        return Finding(OK, "memory", "this system does not tell how much there is")
    room = machine.available * _FOR_WEIGHTS / 1e9
    text = (
        f"{human_bytes(machine.memory, 1)}, {human_bytes(machine.available, 1)} of it free: models "
        f"of up to about {room / _WHOLE:.1f}B parameters, {room / _IN_4_BITS:.1f}B with "
        'QUANTIZE="int4"'
    )
    if machine.available < _LEAST_MEMORY:
        remedy = f"free {human_bytes(_LEAST_MEMORY, 0)}, or let `sax --admin` ask a cell elsewhere"
        return Finding(WARNING, "memory", text, remedy)
    return Finding(OK, "memory", text)


def _accelerators(machine: ThisMachine) -> Iterator[Finding]:
    if not machine.gpus and not machine.tpus:
        yield Finding(OK, "accelerators", "no NVIDIA GPU and no TPU: models run on the processor")
    for gpu in machine.gpus:
        plugin = next((name for name in _CUDA if name in machine.packages), None)
        yield _used("GPU", gpu, plugin, machine, "cuda")
    if machine.tpus:
        plugin = "libtpu" if "libtpu" in machine.packages else None
        yield _used("TPU", f"{machine.tpus} chips", plugin, machine, "tpu")


def _used(kind: str, device: str, plugin: str | None, machine: ThisMachine, extra: str) -> Finding:
    if plugin is None:
        text = f"{device}: not used, jax has no plugin for it"
        return Finding(WARNING, kind, text, how_to_install(extra))
    return Finding(OK, kind, f"{device}: {plugin} {machine.packages[plugin]}")


def _ports(machine: ThisMachine) -> Finding:
    if not machine.taken:
        return Finding(OK, "ports", "all that a cell uses are free")
    taken = ", ".join(f"{port} ({what})" for port, what in machine.taken.items())
    return Finding(
        WARNING,
        "ports",
        f"in use: {taken}",
        "`sax status` shows whether a cell has them; `sax run` chooses free ones, `sax up` takes "
        "others with --port, --admin-port, --status-port, --model-port, --metrics-port",
    )


def _disk(machine: ThisMachine) -> Finding:
    text = f"{human_bytes(machine.free_disk, 1)} free where models are kept"
    if machine.free_disk < _LEAST_DISK:
        remedy = "`sax models` lists fetched models, `sax rm` removes one; HF_HOME names another"
        level = PROBLEM if machine.free_disk < _GIB else WARNING
        return Finding(level, "disk", text, f"{remedy} folder")
    return Finding(OK, "disk", text)


def _folders(machine: ThisMachine) -> Iterator[Finding]:
    for each in machine.folders:
        if each.size:
            how = "`sax clean` removes it" if each.made_again else "may be deleted"
            text = f"{human_bytes(each.size, 1)} in {each.place}: {how} while no cell runs"
            yield Finding(OK, each.what, text)
