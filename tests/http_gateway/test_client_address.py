"""X-Forwarded-For is believed from trusted proxies, and only as far as they wrote it."""

from __future__ import annotations

import pytest
from starlette.types import Scope

from http_gateway.client_address import client_host, parse_networks

PROXIES = parse_networks("10.0.0.0/8, 192.168.1.5")


def scope(peer: str, *forwarded: str) -> Scope:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return {"type": "http", "client": (peer, 4711), "headers": headers}


def test_without_trusted_proxies_the_header_means_nothing() -> None:
    assert client_host(scope("10.0.0.1", "1.2.3.4"), ()) == "10.0.0.1"


def test_a_stranger_cannot_name_an_address() -> None:
    assert client_host(scope("8.8.8.8", "1.2.3.4"), PROXIES) == "8.8.8.8"


def test_the_nearest_address_that_is_no_proxy_counts_and_not_what_the_client_wrote() -> None:
    by_two = scope("10.0.0.1", "6.6.6.6, 1.2.3.4, 192.168.1.5")
    assert client_host(by_two, PROXIES) == "1.2.3.4"
    assert client_host(scope("10.0.0.1", "6.6.6.6", "1.2.3.4"), PROXIES) == "1.2.3.4"


def test_a_proxy_that_says_nothing_usable_counts_itself() -> None:
    assert client_host(scope("10.0.0.1"), PROXIES) == "10.0.0.1"
    assert client_host(scope("10.0.0.1", "1.2.3.4, unknown"), PROXIES) == "10.0.0.1"


def test_a_bad_network_is_refused_with_the_flags_name() -> None:
    with pytest.raises(ValueError, match="--trusted_proxies 'gate': .*give addresses or networks"):
        parse_networks("gate")
