"""Authentication, TLS and operator settings of a server process.

The flags that the admin server and the model server share.
"""

from __future__ import annotations

import argparse
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sax.auth.acl import Acl, parse_acl
from sax.auth.authentication import Authentication
from sax.auth.credentials import read_pem
from sax.auth.token_file import TOKENS_VARIABLE, both_given, token_source, tokens_given
from sax.errors import InvalidRequest

if TYPE_CHECKING:
    import grpc.aio

CLOSING_FLAGS = "--tokens FILE (or --tls_cert, --tls_key and --tls_ca) and --admin_acl NAMES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Authentication is off by default. Raises InvalidRequest naming the flag at fault."""

    tokens: str = ""  # file of names and hashes
    token_variable: bool = False  # SAX_TOKENS holds them
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""  # if set, clients must present a certificate signed by it
    admin_acl: str = ""  # principals allowed to change state on this server

    def __post_init__(self) -> None:
        if self.tokens and self.token_variable:
            raise both_given(self.tokens)
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise InvalidRequest(
                f"--{missing} is missing: --tls_cert and --tls_key go together", param=missing
            )
        if self.tls_ca and not self.tls_cert:
            raise InvalidRequest(
                "--tls_ca requires client certificates, but this server has none itself: add "
                "--tls_cert and --tls_key",
                param="tls_cert",
            )
        admins = parse_acl(self.admin_acl, "admin_acl")
        if self.authenticates and admins.empty:
            raise InvalidRequest(
                "callers must authenticate but --admin_acl names nobody, so nothing could ever be "
                "published or loaded: name the operators, the model servers and the admin server "
                "of this cell, or * for everyone who has a token or certificate",
                param="admin_acl",
            )
        if not self.authenticates and not admins.empty:
            raise InvalidRequest(
                f"--admin_acl {self.admin_acl!r} cannot be enforced without authentication: "
                "add --tokens FILE, or --tls_ca with --tls_cert and --tls_key",
                param="admin_acl",
            )

    @classmethod
    def take_flags(cls, values: MutableMapping[str, Any]) -> Security:
        """Build from parsed flags, removing them from `values`, and the environment."""
        flags = {name: values.pop(name) for name in cls.__slots__ if name in values}
        return cls(**flags, token_variable=tokens_given(""))

    @property
    def authenticates(self) -> bool:
        return bool(self.tokens or self.token_variable or self.tls_ca)

    @property
    def admins(self) -> Acl:
        return parse_acl(self.admin_acl, "admin_acl")

    def authentication(self) -> Authentication:
        """Load the tokens. Raises InvalidRequest naming file and line."""
        return Authentication(token_source(self.tokens), certificates=bool(self.tls_ca))

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Raises RuntimeError for a taken port, InvalidRequest for unusable certificate files."""
        if not self.tls_cert:
            return server.add_insecure_port(address)
        import grpc  # servers have it; the command line reads this module without

        pair = (read_pem(self.tls_key, "tls_key"), read_pem(self.tls_cert, "tls_cert"))
        authority = read_pem(self.tls_ca, "tls_ca") if self.tls_ca else None
        credentials = grpc.ssl_server_credentials([pair], authority, authority is not None)
        return server.add_secure_port(address, credentials)


OPEN_TO_ALL = Security()


def add_security_flags(parser: argparse.ArgumentParser, admins_may: str) -> None:
    """Add the flags of `Security.take_flags`; `admins_may` is the help text of --admin_acl."""
    flags = parser.add_argument_group("authentication (docs/how_to/security.md)")
    flags.add_argument(
        "--tokens",
        default="",
        metavar="FILE",
        help="callers must present a token whose hash is in this file; `sax token NAME` makes one "
        f"(default: no authentication, unless {TOKENS_VARIABLE} holds such lines)",
    )
    flags.add_argument("--admin_acl", default="", metavar="NAMES", help=admins_may)
    flags.add_argument("--tls_cert", default="", metavar="PEM", help="this server's certificate")
    flags.add_argument("--tls_key", default="", metavar="PEM", help="its private key")
    flags.add_argument(
        "--tls_ca",
        default="",
        metavar="PEM",
        help="authority of the clients' certificates; if set, every client must present one",
    )
