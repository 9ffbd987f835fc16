from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from model_server.pathways.link.safety import LinkSafety, is_loopback
from sax.errors import InvalidRequest
from tests.model_server.refusals import refusal


def test_this_machine_is_served_without_certificates() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"):
        assert is_loopback(host), host
        LinkSafety().check(host, "--host")


def test_strangers_are_not() -> None:
    for host in ("", "0.0.0.0", "::", "10.0.0.1", "worker-0"):
        told = refusal(LinkSafety().check, host, "--host")
        assert told.kind is InvalidRequest, host
        assert all(words in told.text for words in ("could run programs", "--trust_network")), host
        LinkSafety(trusted=True).check(host, "--host")
        LinkSafety(tls_cert="a", tls_key="b", tls_ca="c").check(host, "--host")


def test_certificates_go_together() -> None:
    with pytest.raises(InvalidRequest, match="go together"):
        LinkSafety(tls_cert="a", tls_key="b")


def test_without_certificates_connections_are_plain() -> None:
    assert LinkSafety().server() is None
    assert LinkSafety(trusted=True).client() is None


def test_certificates_that_do_not_fit_are_named(tmp_path: Path) -> None:
    one, other = trustme.CA().issue_cert("a"), trustme.CA().issue_cert("b")
    cert, key, authority = (tmp_path / name for name in ("cert", "key", "ca"))
    one.cert_chain_pems[0].write_to_path(cert)
    other.private_key_pem.write_to_path(key)
    one.cert_chain_pems[0].write_to_path(authority)
    with pytest.raises(InvalidRequest, match="do not fit together"):
        LinkSafety(tls_cert=str(cert), tls_key=str(key), tls_ca=str(authority)).server()
