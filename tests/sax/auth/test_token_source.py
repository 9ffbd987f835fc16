"""Tokens come from a file or from a variable, never silently from neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax.auth.acl import Principal
from sax.auth.security import Security
from sax.auth.token_file import new_token, token_line
from sax.auth.token_source import token_source, tokens_given
from sax.errors import InvalidRequest
from tests.identities import Identities


def test_without_a_file_and_a_variable_nobody_is_asked() -> None:
    assert token_source("") is None
    assert not tokens_given("")


def test_a_variable_holds_what_a_file_would(monkeypatch: pytest.MonkeyPatch) -> None:
    token = new_token()
    monkeypatch.setenv("SAX_TOKENS", f"# who\n{token_line('alice', token)}\n")
    tokens = token_source("")
    assert tokens is not None
    assert tokens_given("")
    assert tokens.find(token) == Principal("alice")
    assert tokens.find(new_token()) is None
    assert tokens.named("alice") == Principal("alice")
    assert tokens.named("bob") is None


def test_a_variable_that_is_empty_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAX_TOKENS", "")
    tokens = token_source("")
    assert tokens is not None
    assert tokens.find(new_token()) is None


def test_a_token_put_into_the_variable_by_mistake_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAX_TOKENS", token := new_token())
    with pytest.raises(InvalidRequest, match="SAX_TOKENS:1") as refused:
        token_source("")
    assert token not in refused.value.text


def test_a_file_beside_a_variable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = Identities(tmp_path, "alice")
    monkeypatch.setenv("SAX_TOKENS", "")
    with pytest.raises(InvalidRequest, match="both given"):
        token_source(str(people.path))
    with pytest.raises(InvalidRequest, match="both given"):
        Security(tokens=str(people.path), token_variable=True, admin_acl="ops")


def test_a_server_takes_the_variable_beside_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    token = new_token()
    monkeypatch.setenv("SAX_TOKENS", token_line("ops", token))
    flags = dict.fromkeys(("tokens", "tls_cert", "tls_key", "tls_ca"), "") | {"admin_acl": "ops"}
    security = Security.take_flags({**flags, "port": 1})
    assert security.authenticates
    assert security.authentication().of_token(token) == Principal("ops")
    with pytest.raises(InvalidRequest, match="--admin_acl names nobody"):
        Security.take_flags({**flags, "admin_acl": ""})
