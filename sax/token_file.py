"""The tokens that a server takes: a file of names and hashes, read again when it changes.

A line is `NAME SHA256HEX`: who presents the token that hashes to this is NAME. Lines that begin
with # are comments; a name may stand in several lines, so that a token can be replaced without a
gap. The file never holds a token, so whoever reads it cannot call. Knows nothing of the wire.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from sax.acl import check_name
from sax.errors import InvalidRequest
from sax.identity import Principal

_log = logging.getLogger(__name__)

_PREFIX = "sax_"  # so that scanners for leaked secrets can know one
_BYTES = 32
_HASH = re.compile("[0-9a-f]{64}")


class TokenFile:
    """Finds who a token belongs to."""

    def __init__(self, path: str | Path) -> None:
        """Raises InvalidRequest naming the file and the line that cannot be read."""
        self._path = Path(path)
        self._stamp = _stamp(self._path)
        self._principals = _read(self._path)

    def find(self, token: str) -> Principal | None:
        """Whose it is, as the file says now; None: nobody's."""
        self._refresh()
        # Found by its hash, which nobody can steer: how long this takes tells nothing of a token.
        return self._principals.get(hash_token(token))

    def _refresh(self) -> None:
        """A file that has gone bad changes nothing: who was known stays known."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._principals = _read(self._path)
        except InvalidRequest as exc:
            _log.error("the tokens read before stay in force: %s", exc)
        else:
            _log.info("read %s again: %d tokens", self._path, len(self._principals))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file; None while there is none."""
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
            f"{path} cannot be read ({exc}): name a file of lines NAME SHA256HEX with --tokens; "
            "`sax token NAME` prints one",
            param="tokens",
        ) from exc
    return parse_tokens(text, str(path))


def parse_tokens(text: str, source: str) -> Mapping[bytes, Principal]:
    """Principals by the hash of their tokens. Raises InvalidRequest naming source and line."""
    found: dict[bytes, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        digest, principal = _parse_line(line, f"{source}:{number}")
        if found.get(digest, principal) != principal:
            raise InvalidRequest(
                f"{source}:{number}: this token is {found[digest].name}'s in an earlier line: "
                "give every principal tokens of their own",
                param="tokens",
            )
        found[digest] = principal
    return found


def _parse_line(line: str, where: str) -> tuple[bytes, Principal]:
    words = line.split()
    if len(words) != 2 or not _HASH.fullmatch(words[1]):
        # The line is not told: it may hold a token that someone put here by mistake.
        raise InvalidRequest(
            f"{where}: not a line of NAME SHA256HEX, with 64 lower-case hex digits after the "
            "name; `sax token NAME` prints one",
            param="tokens",
        )
    try:
        return bytes.fromhex(words[1]), Principal(check_name(words[0], "tokens"))
    except InvalidRequest as exc:
        raise InvalidRequest(f"{where}: {exc.text}", param="tokens") from exc


def new_token() -> str:
    """A fresh random one; keep it secret."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def hash_token(token: str) -> bytes:
    """What may be stored of a token: it is random, so a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def token_line(name: str, token: str) -> str:
    """The file's line for a token. Raises InvalidRequest for a name that is none."""
    return f"{check_name(name, 'name')} {hash_token(token).hex()}"
