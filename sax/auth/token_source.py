"""The accepted tokens of a server: its --tokens file, or the variable SAX_TOKENS.

The variable holds what the file would, for containers without a place for a file. A process reads
it once: to change its keys, start it again.
"""

from __future__ import annotations

import os

from sax.auth.acl import Principal
from sax.auth.token_file import TokenFile, hash_token, named_in, parse_tokens
from sax.errors import InvalidRequest

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
