"""The accepted tokens of a server: its --tokens file, reread when it changes, or SAX_TOKENS.

A line is `NAME SHA256HEX`: a token with this hash authenticates NAME. The limits of NAME may follow
(`sax.auth.key_limits`). Lines that start with # are comments. A name may have several lines, so
that a token can be rotated without a gap; they share the limits of the name, so each has to state
the same ones. The file holds hashes only, so reading it grants no access.
The variable holds what the file would, for containers without a place for a file. A process reads
it once: to change its keys, start it again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from sax.auth.acl import Principal, check_name
from sax.auth.key_limits import UNLIMITED, KeyLimits, parse_options
from sax.errors import InvalidRequest

_log = logging.getLogger(__name__)

_PREFIX = "sax_"  # lets secret scanners recognise a token
_BYTES = 32
_HASH = re.compile("[0-9a-f]{64}")


class TokenFile:
    """Looks up principals by token."""

    def __init__(self, path: str | Path) -> None:
        """Raises InvalidRequest naming the file, and the line that cannot be parsed."""
        self._path = Path(path)
        self._stamp = _stamp(self._path)
        self._principals = _read(self._path)

    def find(self, token: str) -> Principal | None:
        self._refresh()
        # Looked up by hash, which a caller cannot steer: timing reveals nothing about tokens.
        return self._principals.get(hash_token(token))

    def named(self, name: str) -> Principal | None:
        self._refresh()
        return named_in(self._principals, name)

    def _refresh(self) -> None:
        """Reread a changed file; if it is invalid, keep the previous tokens."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._principals = _read(self._path)
        except InvalidRequest as exc:
            _log.error("keeping the previous tokens: %s", exc)
        else:
            _log.info("reloaded %s: %d tokens", self._path, len(self._principals))


def named_in(principals: Mapping[bytes, Principal], name: str) -> Principal | None:
    return next((each for each in principals.values() if each.name == name), None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> Mapping[bytes, Principal]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(
            f"{path} cannot be read ({exc}): --tokens takes a file of lines NAME SHA256HEX; "
            "`sax token NAME` prints one",
            param="tokens",
        ) from exc
    return parse_tokens(text, str(path))


def parse_tokens(text: str, source: str) -> Mapping[bytes, Principal]:
    """Return principals by token hash. Raises InvalidRequest naming source and line."""
    found: dict[bytes, Principal] = {}
    named: dict[str, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{source}:{number}"
        digest, principal = _parse_line(line, where)
        owner = found.setdefault(digest, principal)
        if owner.name != principal.name:
            raise _wrong_line(
                where,
                f"this token is {owner.name}'s in an earlier line: give each principal its own "
                "tokens",
            )
        if named.setdefault(principal.name, principal) != principal:
            raise _wrong_line(
                where,
                f"an earlier line of {principal.name} has other limits; the tokens of a name share "
                "them: give each line the same",
            )
    return found


def _parse_line(line: str, where: str) -> tuple[bytes, Principal]:
    name, *rest = line.split()
    digest, *options = rest or [""]
    if not _HASH.fullmatch(digest):
        # Do not quote the line: it may hold a token that was put here by mistake.
        raise _wrong_line(
            where,
            "not a line of NAME SHA256HEX, with 64 lower-case hex digits after the name; "
            "`sax token NAME` prints one",
        )
    try:
        return bytes.fromhex(digest), Principal(check_name(name, "tokens"), parse_options(options))
    except InvalidRequest as exc:
        raise _wrong_line(where, exc.text) from exc


def _wrong_line(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {why}", param="tokens")


def new_token() -> str:
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def hash_token(token: str) -> bytes:
    """Hash a token for storage. A plain hash is safe because tokens are random."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def token_line(name: str, token: str, limits: KeyLimits = UNLIMITED) -> str:
    """Format the file's line for a token. Raises InvalidRequest for an invalid name."""
    return f"{check_name(name, 'name')} {hash_token(token).hex()} {limits}".rstrip()


TOKENS_VARIABLE = "SAX_TOKENS"


class TokenLines:
    """Looks up principals by token, in lines like those of a token file."""

    def __init__(self, text: str, source: str) -> None:
        """Raises InvalidRequest naming the source, and the line that cannot be parsed."""
        self._principals = parse_tokens(text, source)

    def find(self, token: str) -> Principal | None:
        return self._principals.get(hash_token(token))

    def named(self, name: str) -> Principal | None:
        return named_in(self._principals, name)


def tokens_given(path: str) -> bool:
    """True if callers must authenticate by token. path: of --tokens, "" without it."""
    return bool(path) or TOKENS_VARIABLE in os.environ


def token_source(path: str) -> TokenFile | TokenLines | None:
    """Return the tokens to accept; None: authentication by token is off. Raises InvalidRequest."""
    text = os.environ.get(TOKENS_VARIABLE)  # empty: closed to everybody, not open
    if path and text is not None:
        raise both_given(path)
    if path:
        return TokenFile(path)
    return None if text is None else TokenLines(text, TOKENS_VARIABLE)


def both_given(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"--tokens {path} and {TOKENS_VARIABLE} are both given: keep one of them", param="tokens"
    )
