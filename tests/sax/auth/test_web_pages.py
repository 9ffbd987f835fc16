"""What web pages may ask of a server without keys, as one table."""

from __future__ import annotations

from typing import Any

from sax.auth.web_pages import JSON, MULTIPART, WebRules, host_name
from sax.errors import InvalidRequest, PermissionDenied
from tests.each_case import each_case

HERE, EVERYWHERE = {"host": "127.0.0.1"}, {"host": "0.0.0.0"}
KEYS: dict[str, Any] = {**HERE, "keys": True}
LISTED: dict[str, Any] = {**HERE, "origins": ("https://app.example.com",)}
ALL: dict[str, Any] = {**HERE, "origins": ("*",)}
LOCAL, EVIL = "127.0.0.1:8888", "http://evil.example"
FORM = "application/x-www-form-urlencoded"


@each_case(
    "rules, method, headers, refused",
    [
        # programs: whatever content type
        (HERE, "POST", {"host": LOCAL, "content-type": FORM}, None),
        (HERE, "POST", {"host": LOCAL, "content-type": "text/plain"}, None),
        (HERE, "POST", {"host": LOCAL, "content-type": MULTIPART}, None),
        (HERE, "POST", {"host": LOCAL}, None),
        (HERE, "POST", {}, None),  # HTTP/1.0
        (HERE, "POST", {"host": LOCAL, "sec-fetch-mode": "cors"}, None),  # node's fetch
        # names of this machine, and others
        *((HERE, "GET", {"host": host}, None) for host in ("localhost", "LOCALHOST.:1", "[::1]:8")),
        *((HERE, "GET", {"host": host}, None) for host in ("127.9.9.9", "sax.localhost:8888")),
        *(
            (HERE, method, {"host": host}, PermissionDenied)
            for method in ("GET", "HEAD", "POST")
            for host in ("evil.example", "evil.example:8888", "localhost.evil.example", "10.0.0.7")
        ),
        (HERE, "GET", {"host": "[::ffff:8.8.8.8]"}, PermissionDenied),
        (HERE, "GET", {"host": "x127.0.0.1"}, PermissionDenied),
        (LISTED, "GET", {"host": "app.example.com:8888"}, None),
        (LISTED, "GET", {"host": "example.com"}, PermissionDenied),
        (ALL, "GET", {"host": "evil.example"}, None),
        (KEYS, "GET", {"host": "evil.example"}, None),
        (EVERYWHERE, "POST", {"host": "sax.internal"}, None),
        # pages: a reader, which its browser does not let see the reply
        (HERE, "GET", {"host": LOCAL, "origin": EVIL, "sec-fetch-site": "cross-site"}, None),
        # pages that change something
        *(
            (rules, method, {"host": LOCAL, "origin": origin, **more}, PermissionDenied)
            for rules in (HERE, EVERYWHERE, LISTED)
            for method in ("POST", "PUT", "DELETE", "PATCH")
            for origin in (EVIL, "null", "http://127.0.0.1:3000", "http://localhost:8888", "")
            for more in ({}, {"content-type": JSON}, {"content-type": MULTIPART})
        ),
        *(
            (rules, "POST", {"host": LOCAL, "sec-fetch-site": site, **more}, PermissionDenied)
            for rules in (HERE, EVERYWHERE)
            for site in ("cross-site", "same-site", "unheard-of")
            for more in ({}, {"origin": f"http://{LOCAL}"})
        ),
        (KEYS, "POST", {"host": LOCAL, "origin": EVIL}, None),
        (ALL, "POST", {"host": LOCAL, "origin": EVIL, "sec-fetch-site": "cross-site"}, None),
        (
            LISTED,
            "POST",
            {"host": LOCAL, "origin": "https://app.example.com", "sec-fetch-site": "cross-site"},
            None,
        ),
        # its own page
        (HERE, "POST", {"host": LOCAL, "origin": f"http://{LOCAL}", "content-type": JSON}, None),
        (EVERYWHERE, "POST", {"host": "SAX:80", "origin": "http://sax:80"}, None),
        (
            HERE,
            "POST",
            {"host": LOCAL, "origin": "https://behind.proxy", "sec-fetch-site": "same-origin"},
            None,
        ),
        (HERE, "DELETE", {"host": LOCAL, "sec-fetch-site": "same-origin"}, None),
        *(
            (HERE, "POST", {"host": LOCAL, "origin": f"http://{LOCAL}", "content-type": kind}, why)
            for kind, why in (
                ("application/json; charset=utf-8", None),
                (FORM, InvalidRequest),
                ("text/plain;charset=UTF-8", InvalidRequest),
                (MULTIPART, InvalidRequest),
            )
        ),
    ],
)
def test_a_page_changes_only_the_server_that_it_came_from(
    rules: dict[str, Any], method: str, headers: dict[str, str], refused: type | None
) -> None:
    found = WebRules(**rules, remedy="start it with keys").refusal(method, headers)
    assert type(found) is (refused or type(None)), found
    assert refused is not PermissionDenied or "start it with keys" in str(found)


def test_an_upload_is_taken_as_a_form_from_its_own_page_only() -> None:
    rules, types = WebRules(host="127.0.0.1", remedy="no"), (JSON, MULTIPART)
    sent = {"host": LOCAL, "content-type": f"{MULTIPART}; boundary=x"}
    assert rules.refusal("POST", {**sent, "origin": f"http://{LOCAL}"}, types) is None
    assert rules.refusal("POST", {**sent, "origin": EVIL}, types) is not None


@each_case(
    "host, name",
    [
        ("A.example.:80", "a.example"),
        ("[::1]:8888", "::1"),
        ("::1", ""),
        (" localhost ", "localhost"),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name
