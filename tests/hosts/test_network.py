"""The networks of tests: they carry, drop and lose as told, and leave nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hosts import network as networks
from tests.hosts.network import Network, network

pytestmark = pytest.mark.nightly  # of the nightly tests' own tool

# Answers each line, in a namespace.
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
peer, _ = server.accept()
while line := peer.recv(100):
    peer.sendall(line)
"""


@pytest.fixture
def pair() -> Iterator[Network]:
    with network(2) as made:
        yield made


@pytest.fixture
def echo(pair: Network) -> Iterator[socket.socket]:
    """A connection from this machine to the first host."""
    host = pair.hosts[0]
    process = subprocess.Popen(
        [*pair.inside(host), sys.executable, "-c", ECHO, host.address], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        with socket.create_connection((host.address, 7000), timeout=10) as connection:
            yield connection
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ping(net: Network, to: str) -> bool:
    """Does the first host get an answer from there?"""
    code = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 7001), timeout=0.3)\n"
        "except ConnectionRefusedError: print('reached')\n"
        "except OSError: print('silence')\n"
    )
    done = net.run(net.hosts[0], sys.executable, "-c", code, to)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "reached"


def test_hosts_reach_each_other_and_this_machine(pair: Network) -> None:
    assert ping(pair, pair.hosts[1].address)
    assert ping(pair, pair.gateway)


def test_a_host_that_is_cut_off_reaches_only_itself_until_it_is_healed(pair: Network) -> None:
    first, second = pair.hosts
    pair.cut(first)
    assert not ping(pair, second.address)
    assert not ping(pair, pair.gateway)
    assert ping(pair, first.address)
    pair.heal(first)
    assert ping(pair, second.address)


def test_a_cut_in_one_place_is_none_in_another(pair: Network) -> None:
    pair.cut(pair.hosts[1])
    assert ping(pair, pair.gateway)
    assert not ping(pair, pair.hosts[1].address)


def test_a_connection_outlives_a_cut(pair: Network, echo: socket.socket) -> None:
    pair.cut(pair.hosts[0])
    echo.sendall(b"over")
    echo.settimeout(0.5)
    with pytest.raises(TimeoutError):
        echo.recv(10)
    pair.heal(pair.hosts[0])
    echo.settimeout(20)
    assert echo.recv(10) == b"over"


def test_what_is_lost_comes_again(pair: Network, echo: socket.socket) -> None:
    pair.lose(pair.hosts[0], 30)
    echo.settimeout(30)
    for number in range(10):
        echo.sendall(b"%d" % number)
        assert echo.recv(10) == b"%d" % number
    listed = pair.run(pair.hosts[0], "nft", "list", "ruleset").stdout
    assert "numgen random mod 100 < 30" in listed
    pair.cut(pair.hosts[0])  # instead of the loss
    assert "numgen" not in pair.run(pair.hosts[0], "nft", "list", "ruleset").stdout


def test_a_loss_of_all_is_no_loss(pair: Network) -> None:
    with pytest.raises(ValueError, match="cut the host off"):
        pair.lose(pair.hosts[0], 100)


def test_nothing_is_left_behind(pair: Network) -> None:
    names = {host.name for host in pair.hosts}
    assert names <= set(namespaces())
    pair.close()
    assert not names & set(namespaces())


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks.os, "geteuid", lambda: 1000)
    networks.why_not.cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match="need root"), network(1):
            pass
    finally:
        networks.why_not.cache_clear()


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()]
