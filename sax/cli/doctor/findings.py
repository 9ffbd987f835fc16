"""Findings about a machine: what a cell can do with it, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sax.cli.doctor.machine import ThisMachine
from sax.distribution import how_to_install
from sax.finding import OK, PROBLEM, WARNING, Finding
from sax.format import human_bytes

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
        _memory(machine),
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


def _memory(machine: ThisMachine) -> Finding:
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
