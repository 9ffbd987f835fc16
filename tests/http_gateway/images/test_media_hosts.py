"""Only listed hosts are asked for images, and only at public addresses, or at listed ones."""

import ipaddress

import pytest

from http_gateway.images.media_hosts import MediaHosts
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
