"""What a process shows of itself, and when it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sax.auth.credentials import (
    Credentials,
    acting_as,
    bearer_token,
    call_metadata,
    own_account,
    told_to_user,
)
from sax.errors import AdminUnavailable, InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from tests.each_case import each_case


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"):
        monkeypatch.delenv(f"SAX_{name}", raising=False)


def test_without_settings_nothing_is_shown() -> None:
    assert call_metadata() == ()
    assert not Credentials.ours().given
    assert Credentials.ours().channel() is None


def test_a_token_file_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("SAX_TOKEN_FILE", str(file))
    for token in ("one", "another"):
        file.write_text(f"{token}\n")
        assert call_metadata() == (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("content", [None, "two\nlines", "a b", "\u00e9", "\x00"])
def test_a_token_file_that_holds_none_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("SAX_TOKEN_FILE", str(file))
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidRequest) as refused:
        call_metadata()
    assert refused.value.param == "SAX_TOKEN_FILE"


async def test_a_users_calls_carry_the_users_token_or_none_but_never_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAX_TOKEN", "ours")

    async def seen() -> object:
        return call_metadata()

    with acting_as("theirs"):
        assert call_metadata() == (("authorization", "Bearer theirs"),)
        assert await asyncio.create_task(seen()) == call_metadata()
        shared = asyncio.create_task(seen(), context=own_account())
        assert await shared == (("authorization", "Bearer ours"),)
    with acting_as(""):
        assert call_metadata() == ()
    assert call_metadata() == (("authorization", "Bearer ours"),)


def test_that_we_are_refused_is_not_told_to_a_user_as_if_they_were() -> None:
    for refusal in (Unauthenticated("no"), PermissionDenied("no")):
        assert told_to_user(refusal) is refusal
        with acting_as("theirs"):
            assert isinstance(told_to_user(refusal), AdminUnavailable)
    with acting_as("theirs"):
        assert isinstance(told_to_user(NotFound("no")), NotFound)


@each_case(
    "settings",
    [
        {"tls_cert": "c", "tls_key": "k"},
        {"tls_ca": "a", "tls_cert": "c"},
        {"tls_ca": "a", "tls_key": "k"},
        {"tls_ca": "/nowhere"},
        {"tls_ca": __file__},
    ],
)
def test_half_a_certificate_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="SAX_TLS"):
        Credentials(**settings).channel()


@each_case(
    "header, token",
    [("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", None), ("x", None), ("Bearer", "")],
)
def test_only_a_bearer_header_holds_a_token(header: str, token: str | None) -> None:
    assert bearer_token(header) == token
