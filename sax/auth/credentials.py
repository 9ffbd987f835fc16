"""Client credentials of this process: a token, a certificate, or none.

Read from the environment, here only. A gateway calls on behalf of its users: within `acting_as`,
calls carry the user's token, never the gateway's own.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sax import tracing
from sax.errors import AdminUnavailable, InvalidRequest, PermissionDenied, SaxError, Unauthenticated

if TYPE_CHECKING:
    import grpc

TOKEN_VARIABLE = "SAX_TOKEN"
TOKEN_FILE_VARIABLE = "SAX_TOKEN_FILE"
CA_VARIABLE = "SAX_TLS_CA"
CERT_VARIABLE = "SAX_TLS_CERT"
KEY_VARIABLE = "SAX_TLS_KEY"
SERVER_NAME_VARIABLE = "SAX_TLS_SERVER_NAME"

TOKEN_KEY = "authorization"  # in both gRPC metadata and HTTP headers
ACCOUNT_KEY = "sax-account"  # in gRPC metadata: whom the caller asks for, by its own word
SCHEME = "Bearer "
OPENER_KEY = "sax-opener"  # gRPC metadata: the token of who opens a stream for others to use

Metadata = tuple[tuple[str, str], ...]

_user: ContextVar[str | None] = ContextVar("user", default=None)  # None: use our own credentials
_account: ContextVar[str] = ContextVar("account", default="")  # "": we ask for ourselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Sources of this process's token and certificate."""

    token: str = ""
    token_file: str = ""  # alternative to `token`; reread when it changes
    tls_ca: str = ""  # authority to trust; if set, every call is encrypted
    tls_cert: str = ""  # our own certificate
    tls_key: str = ""
    tls_server_name: str = ""  # name in the servers' certificates, if not their address

    @classmethod
    def ours(cls) -> Credentials:
        """Read the credentials from the environment."""
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
        return bool(self.token or self.token_file or self.tls_cert)

    def current_token(self) -> str:
        """Return the token, or "" for none. Raises InvalidRequest if its file cannot be read."""
        if self.token:
            return _checked(self.token.strip(), TOKEN_VARIABLE)
        return _token_of(self.token_file) if self.token_file else ""

    def channel(self) -> grpc.ChannelCredentials | None:
        """Return TLS channel credentials, or None for plaintext. Raises InvalidRequest."""
        if not self.tls_ca:
            if self.tls_cert or self.tls_key:
                raise InvalidRequest(
                    f"{CERT_VARIABLE} and {KEY_VARIABLE} need {CA_VARIABLE}: the certificate of "
                    "the authority that signed the servers' certificates",
                    param=CA_VARIABLE,
                )
            return None
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidRequest(
                f"{CERT_VARIABLE} and {KEY_VARIABLE} go together: set both or neither",
                param=KEY_VARIABLE if self.tls_cert else CERT_VARIABLE,
            )
        import grpc  # whoever calls has it; the command line reads this module without

        return grpc.ssl_channel_credentials(
            read_pem(self.tls_ca, CA_VARIABLE),
            read_pem(self.tls_key, KEY_VARIABLE) if self.tls_key else None,
            read_pem(self.tls_cert, CERT_VARIABLE) if self.tls_cert else None,
        )


def read_pem(path: str, param: str) -> bytes:
    """Read a certificate or key file. Raises InvalidRequest naming `param`."""
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{param}: {path} cannot be read ({exc})", param=param) from exc
    if b"-----BEGIN" not in data:
        raise InvalidRequest(f"{param}: {path} is not a PEM file", param=param)
    return data


def presented_token() -> str:
    """Return the token for a call made now: the user's or our own. Raises InvalidRequest."""
    user = _user.get()
    return Credentials.ours().current_token() if user is None else user


def presented_account() -> str:
    """Return whom a call made now is for; "" if it is for the caller itself."""
    return _account.get()


def call_metadata() -> Metadata:
    """Metadata of a call: who makes it, for whom, and which span it belongs to."""
    token = presented_token()
    told = (
        (TOKEN_KEY, token and SCHEME + token),
        (ACCOUNT_KEY, presented_account()),
        (tracing.TRACEPARENT, tracing.current()),
    )
    return tuple((key, value) for key, value in told if value)


def opener_metadata() -> Metadata:
    """Metadata for opening a stream that carries the requests of several users.

    It proves that a known caller opens the stream, and gives its requests no rights. Our own token,
    or without one the token of the user whose request opens the stream.
    """
    token = Credentials.ours().current_token() or presented_token()
    return ((OPENER_KEY, token),) if token else ()


@contextmanager
def acting_as(token: str, account: str = "") -> Generator[None]:
    """Make calls here, and in tasks started here, with this token ("": none) instead of ours.

    account: whom they are for, so that servers can tell users without tokens apart.
    """
    before, account_before = _user.set(token), _account.set(account)
    try:
        yield
    finally:
        _user.reset(before)
        _account.reset(account_before)


def own_account() -> Context:
    """Return a context for a task that outlives the request that started it, so that its calls use
    our own credentials, not the user's."""
    return Context()


def told_to_user(error: SaxError) -> SaxError:
    """Reword a refusal of our own credentials: the user whose request hit it may have access."""
    if _user.get() is None or not isinstance(error, Unauthenticated | PermissionDenied):
        return error
    return AdminUnavailable(
        f"the cell refuses the process that forwards your request: {error.text} (its operator can "
        f"set {TOKEN_VARIABLE} for it)"
    )


def bearer_token(header: str) -> str | None:
    """Return the token of an `authorization` header, or None for another scheme."""
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
    """Read the file once per version; `stamp` identifies the version."""
    return Path(path).read_text("ascii").strip()


def _checked(token: str, param: str) -> str:
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidRequest(
            f"{param} holds no token: it must be one line without spaces", param=param
        )
    return token
