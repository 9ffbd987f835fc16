"""The flags about callers: what cannot be enforced, or would lock everyone out, does not start."""

from __future__ import annotations

import pytest

from sax.auth.security import Security
from sax.errors import InvalidRequest
from sax.host import is_loopback, open_warning
from tests.each_case import each_case


@each_case(
    "flags, param",
    [
        ({"tokens": "f"}, "admin_acl"),
        ({"tokens": "f", "admin_acl": " "}, "admin_acl"),
        ({"admin_acl": "alice"}, "admin_acl"),
        ({"admin_acl": "a b", "tokens": "f"}, "admin_acl"),
        ({"tls_cert": "c"}, "tls_key"),
        ({"tls_key": "k"}, "tls_cert"),
        ({"tls_ca": "a", "admin_acl": "alice"}, "tls_cert"),
        ({"tls_cert": "c", "tls_key": "k", "admin_acl": "alice"}, "admin_acl"),
        ({"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}, "admin_acl"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_by_its_flag(
    flags: dict[str, str], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Security(**flags)
    assert refused.value.param == param


def test_encryption_alone_asks_nobody_who_they_are() -> None:
    security = Security(tls_cert="c", tls_key="k")
    assert not security.authenticates
    assert not security.authentication().on


@each_case(
    "host, near",
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.5", False),
        ("gateway.example.com", False),
    ],
)
def test_only_what_others_can_reach_is_warned_of(host: str, near: bool) -> None:
    assert is_loopback(host) == near
    warning = open_warning(host, closed=False, offers="publish models", remedy="give --tokens")
    assert bool(warning) != near
    if warning:
        assert "publish models" in warning
        assert "--tokens" in warning
        assert warning.count("\n") >= 4
    assert open_warning(host, closed=True, offers="x", remedy="y") == ""
