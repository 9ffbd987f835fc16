"""Certificate: the gateway's certificate and key, read again when their files change.

Each handshake looks at the files, at most once a second, and a change makes a context of its own:
connections that are open keep theirs, and files that do not fit together change nothing. To load
them into the context in use could leave it with a new certificate and the old key.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable

from sax.errors import InvalidRequest

log = logging.getLogger(__name__)

_LOOK_S = 1.0

Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    def __init__(self, cert: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidRequest if the files cannot be read or do not fit together."""
        self._cert = cert
        self._key = key
        self._clock = clock
        self._looked_s = clock()
        self._stamp = self._look()
        try:
            self._current = self._load()
        except (OSError, ssl.SSLError) as exc:
            raise InvalidRequest(self._wrong(exc), param="tls_cert") from exc

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with: each handshake continues with the newest one."""
        self._current.sni_callback = self._choose
        return self._current

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Called by OpenSSL in each handshake, also without a name."""
        connection.context = self.newest()

    def newest(self) -> ssl.SSLContext:
        """Return the context of the files as they were at the last look."""
        self._refresh()
        return self._current

    def _refresh(self) -> None:
        if self._clock() - self._looked_s < _LOOK_S:
            return
        self._looked_s = self._clock()
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._current = self._load()
        except (OSError, ssl.SSLError) as exc:
            log.error("keeping the previous certificate: %s", self._wrong(exc))
        else:
            log.info("reloaded the certificate %s", self._cert)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._cert, self._key, password=_no_password)
        return context

    def _look(self) -> Stamp | None:
        """Return what tells one version of the files from another; None while one is missing."""
        try:
            found = [os.stat(path) for path in (self._cert, self._key)]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)

    def _wrong(self, exc: Exception) -> str:
        return (
            f"--tls_cert {self._cert} and --tls_key {self._key} cannot be used ({exc}): give a "
            "certificate chain and its private key, in PEM files, without a password"
        )


def _no_password() -> str:
    """Keep OpenSSL from asking at the terminal for the password of an encrypted key."""
    return ""
