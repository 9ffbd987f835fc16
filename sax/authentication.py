"""Who makes a call that a server answers: proven by a token or by a client certificate.

A valid token wins over the certificate of the connection (a gateway calls for many users); one that
is not valid is refused whatever the certificate says. Knows nothing of who is allowed what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sax import acl
from sax.credentials import TOKEN_KEY, TOKEN_VARIABLE, bearer_token
from sax.errors import Unauthenticated
from sax.identity import ANYONE, Principal, enter_call
from sax.token_file import TokenFile

Context = Any  # grpc.aio.ServicerContext is generic in the stubs only

# Probes and tools ask these before they are anyone; they tell nothing but that the process lives
# and what its protocol is, which is public.
_OPEN = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
)
# Nothing happens on this call itself: each request on it brings a token of its own.
_TOKEN_STREAM = "/sax.tokens.TokenService/Stream"


class Authentication:
    """How the callers of one server prove who they are; by default they need not."""

    def __init__(self, tokens: TokenFile | None = None, *, certificates: bool = False) -> None:
        """`certificates`: every connection shows one that our authority has signed."""
        self._tokens = tokens
        self._certificates = certificates

    @property
    def on(self) -> bool:
        """Must callers prove who they are?"""
        return self._tokens is not None or self._certificates

    def enter(self, path: str, context: Context) -> None:
        """From here on the task answers this call for whoever made it. Raises Unauthenticated."""
        if not self.on or path.startswith(_OPEN):
            return
        metadata: dict[str, str] = dict(context.invocation_metadata() or ())
        header = metadata.get(TOKEN_KEY)
        principal = self._of_certificate(context.auth_context()) if self._certificates else ANYONE
        if header is not None:
            principal = self.of_header(header)
        elif not principal.known and path != _TOKEN_STREAM:
            raise _no_token()
        enter_call(principal)

    def enter_message(self, token: str, sender: Principal) -> None:
        """The same for one request of a stream, by its own token or else by the stream's sender.

        Raises Unauthenticated.
        """
        if not self.on:
            return
        principal = self.of_token(token) if token else sender
        if not principal.known:
            raise _no_token()
        enter_call(principal)

    def of_header(self, header: str) -> Principal:
        """Whoever shows this `authorization` header. Raises Unauthenticated."""
        token = bearer_token(header)
        if not token:
            raise Unauthenticated(
                f"the {TOKEN_KEY} header is not a token: send `{TOKEN_KEY}: Bearer TOKEN`"
            )
        return self.of_token(token)

    def of_token(self, token: str) -> Principal:
        """Whose token it is. Raises Unauthenticated."""
        principal = self._tokens.find(token) if self._tokens is not None else None
        if principal is None:
            raise Unauthenticated(
                "the token is not valid here: it may have been withdrawn, or be of another cell; "
                f"set {TOKEN_VARIABLE} (an HTTP client: its API key) to a valid one"
            )
        return principal

    def _of_certificate(self, auth: Mapping[str, Sequence[bytes]]) -> Principal:
        """The subject's common name, or the first other name that names a principal."""
        names = [
            *auth.get("x509_common_name", ()),
            *auth.get("x509_subject_alternative_name", ()),
        ]
        texts = [name.decode("utf-8", "replace") for name in names]
        usable = next((text for text in texts if acl.is_name(text)), None)
        if usable is None:
            raise Unauthenticated(
                "the client certificate names nobody that an access control list could name: give "
                "its subject a common name, or a DNS or URI name, of letters, digits and _.@:/-"
            )
        return Principal(usable)


NO_AUTHENTICATION = Authentication()


def _no_token() -> Unauthenticated:
    return Unauthenticated(
        f"this server answers only callers who prove who they are: set {TOKEN_VARIABLE} to a token "
        "(an HTTP client: send it as its API key); `sax token --help` tells how to make one"
    )
