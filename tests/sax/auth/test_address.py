"""Callers without tokens are told apart by address, which they cannot multiply at will."""

from __future__ import annotations

import pytest

from sax.auth.address import account_of_host, account_of_peer
from tests.each_case import each_case


@each_case(
    "host, account",
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_account_is_an_ipv4_address_or_an_ipv6_network(host: str, account: str) -> None:
    assert account_of_host(host) == account


@pytest.mark.parametrize(
    ("peer", "account"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::/64"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
    ],
)
def test_a_grpc_peer_is_its_host_without_the_port(peer: str, account: str) -> None:
    assert account_of_peer(peer) == account
