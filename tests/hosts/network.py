"""Hosts of their own on one machine: network namespaces on a bridge, to cut off and heal.

Needs root, `ip` and `nft`, and a kernel that lets them; `why_not` says which of these is missing.
What a cut host sends, and what is sent to it, is dropped without a word, as when a cable is pulled;
what it says to itself passes. Latency is not to be had here: see `slow_proxy`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_TABLE = "sax_trouble"
_ETC = Path("/etc/netns")
_OTHERS = '!= "lo"'  # whoever is not the host itself
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, with one address on the bridge."""

    name: str
    address: str


class Network:
    """So many hosts that reach each other, and this machine at `gateway`. Close it after."""

    def __init__(self, count: int) -> None:
        number, pid = next(_numbers) % 256, os.getpid()
        self._prefix = f"sx{pid:x}{number:x}"  # an interface has 15 letters
        # Another network for every process and every try of it.
        subnet = f"10.{64 + pid % 128}.{(pid // 128 + 37 * number) % 256}"
        self._bridge = f"{self._prefix}b"
        self.gateway = f"{subnet}.254"
        self.hosts = tuple(
            Host(f"{self._prefix}h{index}", f"{subnet}.{index + 1}") for index in range(count)
        )

    def open(self) -> None:
        """Make it. Raises CalledProcessError; close it then as well."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for index, host in enumerate(self.hosts):
            self._plug(host, f"{self._prefix}p{index}")

    def close(self) -> None:
        """Take it down, whatever of it is there. What runs inside should have ended."""
        for host in self.hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", host.name)
            shutil.rmtree(_ETC / host.name, ignore_errors=True)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def inside(self, host: Host) -> tuple[str, ...]:
        """What stands before a command that is to run on this host."""
        return ("ip", "netns", "exec", host.name)

    def run(
        self, host: Host, *command: str, timeout_s: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end, whatever its status."""
        return subprocess.run(
            [*self.inside(host), *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )

    def name(self, addresses: Mapping[str, str]) -> None:
        """Every host knows these names, as if a DNS told it."""
        lines = "".join(f"{address} {name}\n" for name, address in addresses.items())
        for host in self.hosts:
            with (_ETC / host.name / "hosts").open("a") as file:
                file.write(lines)

    def cut(self, host: Host) -> None:
        """Nothing goes in or out any more, and nobody is told."""
        self._trouble(host, "drop")

    def lose(self, host: Host, percent: int) -> None:
        """So much of what goes in, and as much of what goes out, is lost."""
        if not 0 < percent < 100:
            raise ValueError(f"{percent} percent of loss: give 1 to 99, or cut the host off")
        self._trouble(host, f"numgen random mod 100 < {percent} drop")

    def heal(self, host: Host) -> None:
        """As if nothing had been."""
        self._nft(host, f"add table inet {_TABLE}; delete table inet {_TABLE}")

    def _plug(self, host: Host, port: str) -> None:
        _ip("netns", "add", host.name)
        # What is run there sees this as /etc/hosts: its own name is an address others reach.
        (_ETC / host.name).mkdir(parents=True, exist_ok=True)
        names = f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n"
        (_ETC / host.name / "hosts").write_text(names)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("link", "set", port, "master", self._bridge, "up")
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("-n", host.name, "link", "set", "eth0", "up")
        _ip("-n", host.name, "route", "add", "default", "via", self.gateway)

    def _trouble(self, host: Host, verdict: str) -> None:
        """Instead of whatever trouble it had before, at once."""
        rules = [f"add table inet {_TABLE}; delete table inet {_TABLE}", f"add table inet {_TABLE}"]
        for chain, interface in (("input", "iifname"), ("output", "oifname")):
            hook = f"{{ type filter hook {chain} priority 0; policy accept; }}"
            rules += [f"add chain inet {_TABLE} {chain} {hook}"]
            rules += [f"add rule inet {_TABLE} {chain} {interface} {_OTHERS} {verdict}"]
        self._nft(host, "\n".join(rules))

    def _nft(self, host: Host, rules: str) -> None:
        done = subprocess.run(
            [*self.inside(host), "nft", "-f", "-"], input=rules, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(f"nft on {host.name}: {done.stderr.strip()}")


@cache
def why_not() -> str:
    """Why there are no networks to be had here; "" where there are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"network namespaces need {tool}: install {package}"
    network = Network(1)
    try:
        network.open()
        network.cut(network.hosts[0])
    except subprocess.CalledProcessError as exc:
        return f"network namespaces are not permitted here: {exc.stderr.strip()}"
    except OSError as exc:
        return f"network namespaces are not permitted here: {exc}"
    finally:
        network.close()
    return ""


@contextmanager
def network(count: int) -> Generator[Network]:
    """A network while it lasts. Skips the test, in words, where there is none to be had."""
    if reason := why_not():
        pytest.skip(reason)
    made = Network(count)
    try:
        made.open()
        yield made
    finally:
        made.close()


def _ip(*words: str) -> None:
    command: Sequence[str] = ("ip", *words)
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
