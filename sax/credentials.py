"""What this process shows of itself to the servers it calls: a token, a certificate, or nothing.

Read from the environment in one place. A gateway calls on behalf of its users: between `acting_as`
and the end of a request its calls carry the user's token, never its own. Knows nothing of who is
allowed what.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import grpc

from sax.errors import (
    AdminUnavailable,
    InvalidRequest,
    PermissionDenied,
    SaxError,
    Unauthenticated,
)

TOKEN_VARIABLE = "SAX_TOKEN"
TOKEN_FILE_VARIABLE = "SAX_TOKEN_FILE"
CA_VARIABLE = "SAX_TLS_CA"
CERT_VARIABLE = "SAX_TLS_CERT"
KEY_VARIABLE = "SAX_TLS_KEY"
SERVER_NAME_VARIABLE = "SAX_TLS_SERVER_NAME"

TOKEN_KEY = "authorization"  # of gRPC metadata and of HTTP headers alike
SCHEME = "Bearer "

Metadata = tuple[tuple[str, str], ...]

_user: ContextVar[str | None] = ContextVar("user", default=None)  # None: on our own account


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Where the token and the certificate of a process are."""

    token: str = ""
    token_file: str = ""  # in its place: read again whenever it changes
    tls_ca: str = ""  # whom to believe; given, every call is encrypted
    tls_cert: str = ""  # who we are
    tls_key: str = ""
    tls_server_name: str = ""  # what certificates call the servers, if not by their address

    @classmethod
    def ours(cls) -> Credentials:
        """As the environment says now."""
        get = os.environ.get
        return cls(
            token=get(TOKEN_VARIABLE, ""),
            token_file=get(TOKEN_FILE_VARIABLE, ""),
            tls_ca=get(CA_VARIABLE, ""),
            tls_cert=get(CERT_VARIABLE, ""),
            tls_key=get(KEY_VARIABLE, ""),
            tls_server_name=get(SERVER_NAME_VARIABLE, ""),
        )

    @property
    def given(self) -> bool:
        """Is there anything to show?"""
        return bool(self.token or self.token_file or self.tls_cert)

    def current_token(self) -> str:
        """The token, "" for none. Raises InvalidRequest if its file cannot be read."""
        if self.token:
            return _checked(self.token.strip(), TOKEN_VARIABLE)
        return _token_of(self.token_file) if self.token_file else ""

    def channel(self) -> grpc.ChannelCredentials | None:
        """For an encrypted connection; None where plain ones are used. Raises InvalidRequest."""
        if not self.tls_ca:
            if self.tls_cert or self.tls_key:
                raise InvalidRequest(
                    f"{CERT_VARIABLE} and {KEY_VARIABLE} need {CA_VARIABLE}: the certificate of "
                    "the authority that the servers' own are signed by",
                    param=CA_VARIABLE,
                )
            return None
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidRequest(
                f"{CERT_VARIABLE} and {KEY_VARIABLE} go together: give both or none",
                param=KEY_VARIABLE if self.tls_cert else CERT_VARIABLE,
            )
        return grpc.ssl_channel_credentials(
            read_pem(self.tls_ca, CA_VARIABLE),
            read_pem(self.tls_key, KEY_VARIABLE) if self.tls_key else None,
            read_pem(self.tls_cert, CERT_VARIABLE) if self.tls_cert else None,
        )


def read_pem(path: str, param: str) -> bytes:
    """The bytes of a certificate or key file. Raises InvalidRequest naming `param`."""
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{param}: {path} cannot be read ({exc})", param=param) from exc
    if b"-----BEGIN" not in data:
        raise InvalidRequest(f"{param}: {path} is no PEM file", param=param)
    return data


def presented_token() -> str:
    """What a call made now carries: the user's token, or our own. Raises InvalidRequest."""
    user = _user.get()
    return Credentials.ours().current_token() if user is None else user


def call_metadata() -> Metadata:
    """The same as metadata of a call."""
    token = presented_token()
    return ((TOKEN_KEY, SCHEME + token),) if token else ()


@contextmanager
def acting_as(token: str) -> Generator[None]:
    """Calls made in here, and in tasks started in here, carry this token ("": none), not ours."""
    before = _user.set(token)
    try:
        yield
    finally:
        _user.reset(before)


def own_account() -> Context:
    """The context of a task that outlives the request that happened to start it: what such a task
    asks, it asks for this process, whoever the user was."""
    return Context()


def told_to_user(error: SaxError) -> SaxError:
    """An error of our own account, as the user hears of it whose request ran into it: that we are
    refused does not mean that they are."""
    if _user.get() is None or not isinstance(error, Unauthenticated | PermissionDenied):
        return error
    return AdminUnavailable(
        f"the cell refuses the process that passes your request on: {error.text} (its operator "
        f"can set {TOKEN_VARIABLE} for it)"
    )


def bearer_token(header: str) -> str | None:
    """The token of an `authorization` header, None if it is of another kind."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == SCHEME.strip().lower() else None


def _token_of(path: str) -> str:
    try:
        found = os.stat(path)
        token = _read_token(path, (found.st_mtime_ns, found.st_size, found.st_ino))
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(
            f"{TOKEN_FILE_VARIABLE}: {path} cannot be read ({exc}): write a token into it",
            param=TOKEN_FILE_VARIABLE,
        ) from exc
    return _checked(token, TOKEN_FILE_VARIABLE)


@lru_cache(maxsize=8)
def _read_token(path: str, stamp: tuple[int, int, int]) -> str:
    """The stamp says which contents of the file: it is read once for each."""
    return Path(path).read_text("ascii").strip()


def _checked(token: str, param: str) -> str:
    """A header holds printable ASCII without spaces and nothing else."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidRequest(f"{param} holds no token: one line of it and no more", param=param)
    return token
