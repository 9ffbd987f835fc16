"""The token file: who a token belongs to, now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sax.auth.acl import Principal
from sax.auth.security import Security
from sax.auth.token_file import TokenFile, new_token, token_line, token_source, tokens_given
from sax.errors import InvalidRequest
from tests.identities import Identities


def test_a_token_belongs_to_whom_the_file_says_and_to_nobody_else(tmp_path: Path) -> None:
    people = Identities(tmp_path, "alice", "bob@example.com")
    tokens = TokenFile(people.path)
    assert tokens.find(people.tokens["alice"]) == Principal("alice")
    assert tokens.find(people.tokens["bob@example.com"]) == Principal("bob@example.com")
    for stranger in ("", new_token(), people.tokens["alice"][:-1], "\udc80"):
        assert tokens.find(stranger) is None


def test_a_principal_is_found_by_name_as_long_as_it_has_a_token(tmp_path: Path) -> None:
    people = Identities(tmp_path, "alice")
    tokens = TokenFile(people.path)
    assert tokens.named("alice") == Principal("alice")
    assert tokens.named("bob") is None
    people.path.write_text("# nobody\n")
    assert tokens.named("alice") is None


def test_the_file_holds_no_token(tmp_path: Path) -> None:
    people = Identities(tmp_path, "alice")
    assert people.tokens["alice"] not in people.path.read_text()


def test_a_person_may_have_two_tokens_while_one_replaces_the_other(tmp_path: Path) -> None:
    old, new = new_token(), new_token()
    (tmp_path / "f").write_text(f"{token_line('alice', old)}\n{token_line('alice', new)}\n")
    tokens = TokenFile(tmp_path / "f")
    assert tokens.find(old) == tokens.find(new) == Principal("alice")


def test_a_change_of_the_file_is_in_force_at_the_next_look(tmp_path: Path) -> None:
    people = Identities(tmp_path, "alice")
    tokens = TokenFile(people.path)
    people.tokens["bob"] = new_token()
    gone = people.tokens.pop("alice")
    people.write()
    assert tokens.find(gone) is None
    assert tokens.find(people.tokens["bob"]) == Principal("bob")


def test_a_file_that_goes_bad_or_away_changes_nothing_until_it_is_good_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    people = Identities(tmp_path, "alice")
    tokens = TokenFile(people.path)
    good = people.path.read_text()
    people.path.write_text("alice\n")
    assert tokens.find(people.tokens["alice"]) == Principal("alice")
    os.remove(people.path)
    for _ in range(3):
        assert tokens.find(people.tokens["alice"]) == Principal("alice")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert f"{people.path}:1" in caplog.text
    people.path.write_text(good.replace("alice", "carol"))
    assert tokens.find(people.tokens["alice"]) == Principal("carol")


SECRET = "sax_put-here-by-mistake"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("alice", "NAME SHA256HEX"),
        (f"alice {SECRET}", "NAME SHA256HEX"),
        ("alice " + "F" * 64, "NAME SHA256HEX"),
        (f"alice {'f' * 64} {SECRET}", "none of rpm=N, tpm=N"),
        (f"alice {'f' * 64} rpm={SECRET}", "rpm= takes a whole number from 1"),
        ("alice " + "f" * 64 + " tpm=0", "tpm= takes a whole number from 1"),
        ("alice " + "f" * 64 + " rpm=1 rpm=2", "rpm= is there twice"),
        ("alice " + "f" * 64 + " models=a,,b", "models= takes 1 to 100 globs"),
        ("alice " + "f" * 64 + " rpm=1", "an earlier line of alice has other limits"),
        ("al!ce " + "f" * 64, "not a principal name"),
        ("bob " + "0" * 64, "alice's in an earlier line"),
    ],
)
def test_a_bad_line_ends_the_start_by_file_and_line_and_is_not_repeated(
    tmp_path: Path, line: str, says: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text("# good\n\nalice " + "0" * 64 + f"\n{line}\n")
    with pytest.raises(InvalidRequest, match=says) as refused:
        TokenFile(path)
    assert f"{path}:4" in refused.value.text
    assert SECRET not in refused.value.text
    assert refused.value.param == "tokens"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=str(path)):
        TokenFile(path)


def test_tokens_differ_and_fit_into_a_header() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(token.isascii() and token.isprintable() and " " not in token for token in made)


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
