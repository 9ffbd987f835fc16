"""Messages that the hosts of a replica exchange when they meet, and the checks on them.

A host is checked against the primary and against the hosts already present. A refusal names the
host, what is wrong and what is expected.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec

from model_server.config import ModelServerConfig
from model_server.engine.versions import versions
from model_server.multihost.membership import Membership

# Flags that must match on every host: they shape the programs that the hosts run together.
_ALIKE = (
    "slots",
    "page_size",
    "max_context",
    "kv_cache_bytes",
    "models",
    "queue",
    "max_running_per_account",
    "max_queued_per_account",
    "cpu_devices",
    "imports",
    "model_filter_regex",
    "prefill",
    "prefill_servers",
)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A host's introduction to the primary: identity, versions, machine and flags."""

    count: int  # hosts in the replica, according to this host
    ordinal: int
    name: str
    nonce: str  # of this process
    versions: Mapping[str, str]
    machine: str  # hosts with the same machine can run each other's programs
    flags: Mapping[str, str]


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Sent once all hosts are present: the addresses to continue with."""

    host: str  # of the primary, as the secondaries reach it
    coordinator: int  # port of jax's coordination service
    commands: int  # port that publishes commands
    replies: int  # port that takes acknowledgements, votes and heartbeats


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    missing: str  # formatted for messages


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    reason: str


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Sent by a primary to its own address, to find out whether another process answers."""

    nonce: str


class Found(msgspec.Struct, frozen=True, tag="found"):
    """The primary that answers a Probe."""

    nonce: str
    name: str


Greeting = Hello | Welcome | Waiting | Refusal | Probe | Found


def hello(membership: Membership, config: ModelServerConfig) -> Hello:
    return Hello(
        count=membership.count,
        ordinal=membership.ordinal,
        name=membership.names[membership.ordinal],
        nonce=config.incarnation,
        versions=versions(),
        machine=machine(),
        flags={f"--{name}": str(getattr(config, name)) for name in _ALIKE},
    )


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return a short id of this machine's instruction set."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = platform.processor()
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(flags.encode()).hexdigest()[:12]
    return f"{platform.system()} {platform.machine()} {digest}"


def why_not(primary: Hello, host: Hello, present: Mapping[int, Hello]) -> str | None:
    """Return why this host cannot join, or None if it can."""
    who = f"host {host.ordinal} ({host.name})"
    if host.count != primary.count:
        return (
            f"{who} expects {host.count} hosts, the primary ({primary.name}) expects "
            f"{primary.count}: give every host the same --hosts"
        )
    if host.ordinal == 0:
        return (
            f"two primaries: {host.name} and {primary.name} both say that they are host 0: give "
            "every host its own --host_ordinal"
        )
    if not 0 < host.ordinal < primary.count:
        return f"{who} is out of range: its ordinal must be 1 to {primary.count - 1}"
    other = present.get(host.ordinal)
    if other is not None and other.nonce != host.nonce:
        return (
            f"two hosts {host.ordinal}: {other.name} and {host.name} both say that they are: give "
            "every host its own --host_ordinal"
        )
    return _differs(primary, host, who)


def _differs(primary: Hello, host: Hello, who: str) -> str | None:
    for name, wanted in primary.versions.items():
        has = host.versions.get(name, "no version")
        if has != wanted:
            return (
                f"{who} runs {name} {has}, the primary ({primary.name}) runs {wanted}: start every "
                "host from the same image"
            )
    for flag, wanted in primary.flags.items():
        if (has := host.flags.get(flag)) != wanted:
            return (
                f"{who} was started with {flag} {has}, the primary ({primary.name}) with "
                f"{wanted}: give every host the same flags"
            )
    return None


def why_uneven(devices: Mapping[int, tuple[int, str]], names: tuple[str, ...]) -> str | None:
    """Return which host's devices differ from the primary's.

    devices: (count, kind) by ordinal.
    """
    wanted = devices.get(0, (0, ""))
    for ordinal, name in enumerate(names):
        has = devices.get(ordinal, (0, "none"))
        if has != wanted:
            return (
                f"host {ordinal} ({name}) has {has[0]} devices ({has[1]}), the primary "
                f"({names[0]}) has {wanted[0]} ({wanted[1]}): all hosts must have the same"
            )
    return None
