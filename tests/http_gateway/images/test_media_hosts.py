"""Only listed hosts are asked for images, and only at public addresses, or at listed ones."""

from __future__ import annotations

import ipaddress

import pytest

from http_gateway.images.media_hosts import MediaHosts, is_public
from tests.each_case import each_case


@pytest.mark.parametrize(
    ("listed", "host", "allowed"),
    [
        ("", "example.com", False),
        ("example.com", "example.com", True),
        ("Example.com", "EXAMPLE.com.", True),
        ("example.com", "a.example.com", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "example.com", False),
        ("*", "example.com", True),
        ("*", "8.8.8.8", True),
        ("*", "127.0.0.1", False),
        ("*", "[::1]", False),
        ("*", "169.254.169.254", False),
        ("example.com", "8.8.8.8", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("*,127.0.0.1", "127.0.0.1", True),
        ("*,127.0.0.1", "[::ffff:127.0.0.1]", True),
        ("*", "[::ffff:10.0.0.1]", False),
        ("*", "[64:ff9b::a9fe:a9fe]", False),
        ("*", "[64:ff9b::808:808]", True),
        ("*,::1", "[::1]", True),
    ],
)
def test_a_host_is_asked_if_it_is_listed(listed: str, host: str, *, allowed: bool) -> None:
    assert MediaHosts.parse(listed).allow(host) is allowed


@pytest.mark.parametrize(
    ("listed", "address", "reached"),
    [
        ("*", "8.8.8.8", True),
        ("*", "192.168.1.1", False),
        ("example.com,192.168.0.0/16", "192.168.1.1", True),
        ("*", "224.0.0.1", False),
        ("*", "0.0.0.0", False),
        ("*", "fd00::1", False),
        ("example.com,10.0.0.0/8", "64:ff9b::a00:1", True),
        ("example.com,10.0.0.0/8", "2002:7f00:1::", False),
        ("*", "2606:4700::1111", True),
    ],
)
def test_an_address_that_is_not_public_must_be_listed(
    listed: str, address: str, *, reached: bool
) -> None:
    assert MediaHosts.parse(listed).reach(ipaddress.ip_address(address)) is reached


@each_case("listed", ["https://example.com", "a b", "*.*", "example.com:80", "*."])
def test_what_is_no_host_is_refused(listed: str) -> None:
    with pytest.raises(ValueError, match="--media_hosts"):
        MediaHosts.parse(listed)


PUBLIC = ("8.8.8.8", "1.1.1.1", "192.0.1.1", "172.32.0.1", "100.128.0.1", "193.0.0.1")
PRIVATE = (
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
)
OWN = (
    *(("2606:4700::1111", True), ("2a00:1450:4001::200e", True), ("2400::1", True)),
    *((text, False) for text in ("::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "feff::1")),
    *((text, False) for text in ("fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "100::1")),
    *((text, False) for text in ("64:ff9b:1::808:808", "64:ff9b:1:7f00::1", "5f00::1")),
    *((text, False) for text in ("2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "4000::1")),
)


def forms(four: str) -> dict[str, str]:
    """Every address that is forwarded to, or holds, this one."""
    bits = int(ipaddress.IPv4Address(four))
    other = int(ipaddress.IPv4Address("8.8.8.8"))
    words = {
        "compatible": bits,
        "mapped": 0xFFFF << 32 | bits,
        "translated": 0xFFFF << 48 | bits,
        "NAT64": 0x64FF9B << 96 | bits,
        "6to4": 0x2002 << 112 | bits << 80 | 1,
        "Teredo client": 0x20010000 << 96 | other << 64 | (bits ^ 0xFFFFFFFF),
        "Teredo server": 0x20010000 << 96 | bits << 64 | (other ^ 0xFFFFFFFF),
    }
    return {"itself": four} | {name: str(ipaddress.IPv6Address(w)) for name, w in words.items()}


@each_case(
    "text, public, form",
    [
        *((text, public, "itself") for text, public in OWN),
        *((text, True, form) for four in PUBLIC for form, text in forms(four).items()),
        *((text, False, form) for four in PRIVATE for form, text in forms(four).items()),
    ],
)
def test_an_address_is_public_if_it_and_all_that_it_holds_are(
    text: str, public: bool, form: str
) -> None:
    assert is_public(ipaddress.ip_address(text)) is public
