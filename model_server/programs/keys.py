"""Properties besides its own text that a compiled program depends on, and their comparison.

Imports no jax: `surroundings` fills in the keys.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Flags that change no program: where XLA dumps, how many devices a CPU host simulates.
_IDLE_FLAGS = ("--xla_dump_", "--xla_force_host_platform_device_count")
_NONE = "none"


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Compiler and target of a program."""

    platform: str  # cpu, gpu, tpu
    chip: str  # device kind, as jax names it
    machine: str  # instruction set id of a CPU; empty elsewhere
    jax: str
    jaxlib: str
    libtpu: str  # empty where it is not used
    flags: Mapping[str, str]  # of the compiler, by environment variable
    mesh: str  # replica x data x model
    hosts: int
    devices_per_host: int
    devices: tuple[str, ...]  # id and coordinates, in the order of the mesh


def flags_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the compiler flags that change programs, sorted."""
    return {name: _flags(environment.get(name, "")) for name in _FLAGS}


def differences(made: Keys, here: Keys) -> list[str]:
    """Describe each difference: "made for jax 0.10.1, this server has 0.10.2"."""
    found = [
        f"made for {name} {there or _NONE}, this server has {ours or _NONE}"
        for name, there, ours in _pairs(made, here)
        if there != ours
    ]
    # With another number of devices, their coordinates differ as a matter of course.
    alike = (made.chip, made.mesh, made.hosts, made.devices_per_host) == (
        here.chip,
        here.mesh,
        here.hosts,
        here.devices_per_host,
    )
    if alike and made.devices != here.devices:
        found.append(_moved(made.devices, here.devices))
    return found


def _pairs(made: Keys, here: Keys) -> list[tuple[str, str, str]]:
    names = ("platform", "chip", "machine", "jax", "jaxlib", "libtpu", "mesh")
    plain = [(name, getattr(made, name), getattr(here, name)) for name in names]
    flags = [(name, made.flags.get(name, ""), here.flags.get(name, "")) for name in _FLAGS]
    return [*plain, *flags, ("a slice of", _hosts(made), _hosts(here))]


def _hosts(keys: Keys) -> str:
    several = "s" if keys.hosts > 1 else ""
    return f"{keys.hosts} host{several} with {keys.devices_per_host} devices"


def _moved(made: tuple[str, ...], here: tuple[str, ...]) -> str:
    place = next(n for n, pair in enumerate(zip(made, here, strict=True)) if pair[0] != pair[1])
    return (
        f"made for device {made[place]} at place {place} of the mesh, this server has device "
        f"{here[place]}"
    )


def _flags(text: str) -> str:
    return " ".join(sorted(word for word in text.split() if not word.startswith(_IDLE_FLAGS)))
