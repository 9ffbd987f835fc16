"""Authenticates the callers of a server, by bearer token or client certificate.

A valid token takes precedence over the connection's certificate (a gateway calls for many users);
an invalid token is refused even with a valid certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sax.auth import acl
from sax.auth.acl import ANYONE, Principal, enter_call
from sax.auth.credentials import OPENER_KEY, TOKEN_KEY, TOKEN_VARIABLE, bearer_token
from sax.auth.token_file import TokenFile, TokenLines
from sax.errors import Unauthenticated

# Probes and tools call these without credentials; they reveal only that the process is alive and
# its protocol, which is public.
_OPEN = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
)
# Each request on this stream carries its own token; whoever opens it only has to be known.
_TOKEN_STREAM = "/sax.tokens.TokenService/Stream"


def is_open(path: str) -> bool:
    return path.startswith(_OPEN)


class Authentication:
    """Authenticates the callers of one server; off by default."""

    def __init__(
        self, tokens: TokenFile | TokenLines | None = None, *, certificates: bool = False
    ) -> None:
        """`certificates`: every connection presents a certificate signed by our authority."""
        self._tokens = tokens
        self._certificates = certificates

    @property
    def on(self) -> bool:
        return self._tokens is not None or self._certificates

    @property
    def by_header(self) -> bool:
        """True when headers alone tell who calls; with certificates the connection tells too."""
        return self._tokens is not None and not self._certificates

    def enter(
        self,
        path: str,
        metadata: Iterable[tuple[str, str | bytes]],
        connection: Mapping[str, Iterable[bytes]] | None = None,
    ) -> None:
        """Set the caller of the call that this task answers. Raises Unauthenticated.

        `connection` is the authentication context of a handler, which holds the certificate.
        """
        if not self.on or is_open(path):
            return
        headers = dict(metadata)
        header = headers.get(TOKEN_KEY)
        principal = self._of_certificate(connection or {}) if self._certificates else ANYONE
        if header is not None:
            principal = self.of_header(str(header))
        elif not principal.known:
            self._check_opener(path, headers.get(OPENER_KEY))
        enter_call(principal)

    def enter_message(self, token: str, sender: Principal) -> None:
        """Set a stream request's caller: its token's, else the sender. Raises Unauthenticated."""
        if not self.on:
            return
        principal = self.of_token(token) if token else sender
        if not principal.known:
            raise _no_token()
        enter_call(principal)

    def _check_opener(self, path: str, opener: str | bytes | None) -> None:
        """Let someone who is known open a token stream: each of its requests has its own caller."""
        if path != _TOKEN_STREAM or opener is None:
            raise _no_token()
        self.of_token(str(opener))

    def of_header(self, header: str) -> Principal:
        """Return the principal of an `authorization` header. Raises Unauthenticated."""
        token = bearer_token(header)
        if not token:
            raise Unauthenticated(
                f"the {TOKEN_KEY} header holds no token: send `{TOKEN_KEY}: Bearer TOKEN`"
            )
        return self.of_token(token)

    def of_token(self, token: str) -> Principal:
        """Return the principal of a token. Raises Unauthenticated."""
        principal = self._tokens.find(token) if self._tokens is not None else None
        if principal is None:
            raise Unauthenticated(
                "the token is not valid here: it may have been revoked or belong to another cell; "
                f"set {TOKEN_VARIABLE} (HTTP clients: the API key) to a valid one"
            )
        return principal

    def named(self, name: str) -> Principal | None:
        """Return the principal of this name that has a token here, with its limits as they are now;
        None: its tokens are gone."""
        return self._tokens.named(name) if self._tokens is not None else None

    def _of_certificate(self, auth: Mapping[str, Iterable[bytes]]) -> Principal:
        """Use the subject's common name, or the first alternative name valid for a principal."""
        names = [
            *auth.get("x509_common_name", ()),
            *auth.get("x509_subject_alternative_name", ()),
        ]
        texts = [name.decode("utf-8", "replace") for name in names]
        usable = next((text for text in texts if acl.is_name(text)), None)
        if usable is None:
            raise Unauthenticated(
                "the client certificate has no name that an access control list could hold: give "
                "its subject a common name, or a DNS or URI name, of letters, digits and _.@:/-"
            )
        return Principal(usable)


NO_AUTHENTICATION = Authentication()


def _no_token() -> Unauthenticated:
    return Unauthenticated(
        f"this server requires authentication: set {TOKEN_VARIABLE} to a token (HTTP clients: send "
        "it as the API key); `sax token --help` explains how to make one"
    )
