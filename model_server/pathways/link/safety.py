"""Access to a link: for this machine, or for holders of certificates: programs are code."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from sax.auth.credentials import read_pem
from sax.errors import InvalidRequest
from sax.host import is_loopback

TRUST_FLAG = "--trust_network"
TRUST_VARIABLE = "SAX_PATHWAYS_TRUST_NETWORK"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSafety:
    """Certificate files of this process; all three or none."""

    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""  # signs the certificates of all processes
    trusted: bool = False  # the operator says that nobody else is on this network

    def __post_init__(self) -> None:
        given = [bool(self.tls_cert), bool(self.tls_key), bool(self.tls_ca)]
        if any(given) and not all(given):
            raise InvalidRequest(
                "--tls_cert, --tls_key and --tls_ca go together: each process shows a certificate "
                "and asks for one",
                param="tls_cert",
            )

    @property
    def mutual(self) -> bool:
        return bool(self.tls_ca)

    def check(self, host: str, flag: str) -> None:
        """Raises InvalidRequest if a server at this address would serve strangers."""
        if not (self.mutual or self.trusted or is_loopback(host)):
            raise InvalidRequest(
                f"{flag}: at {host or 'all addresses'} anybody who reaches this port could run "
                "programs on the devices: use --tls_cert, --tls_key and --tls_ca, or 127.0.0.1, or "
                f"say with {TRUST_FLAG} (or {TRUST_VARIABLE}=1) that nobody else is on this "
                "network, as between the pods of one job behind a NetworkPolicy",
                param=flag.lstrip("-"),
            )

    def server(self) -> ssl.SSLContext | None:
        """Return what a server shows and asks for; None: plain TCP. Raises InvalidRequest."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client(self) -> ssl.SSLContext | None:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if context is not None:
            # Workers are known by address only, and theirs change: the authority vouches.
            context.check_hostname = False
        return context

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext | None:
        if not self.mutual:
            return None
        for path, name in ((self.tls_cert, "tls_cert"), (self.tls_key, "tls_key")):
            read_pem(path, name)
        authority = read_pem(self.tls_ca, "tls_ca").decode()
        context = ssl.SSLContext(protocol)
        context.verify_mode = (
            ssl.CERT_REQUIRED if protocol == ssl.PROTOCOL_TLS_SERVER else (context.verify_mode)
        )
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
            context.load_verify_locations(cadata=authority)
        except ssl.SSLError as exc:
            raise InvalidRequest(
                f"--tls_cert {self.tls_cert}, --tls_key and --tls_ca do not fit together: {exc}",
                param="tls_cert",
            ) from exc
        return context
