"""Which requests of web browsers a server without keys answers: those of its own pages. Pure.

A browser lets every page send requests to every address, this machine's too, and says which page it
was (Origin, Sec-Fetch-Site). A page whose own name was pointed at this machine (DNS rebinding) is
told by the Host that it asks for. Programs send none of these headers, and are not held up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sax.errors import InvalidRequest, PermissionDenied, SaxError
from sax.format import quoted
from sax.host import is_loopback

ANY = "*"
JSON = "application/json"
MULTIPART = "multipart/form-data"

_READING = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = ("same-origin", "none")  # none: the user typed it, or opened a bookmark


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRules:
    """keys: callers need a token, which no foreign page has. origins: "*", or pages that may call.
    remedy: how the operator lets others in."""

    host: str  # that the server listens on
    remedy: str
    keys: bool = False
    origins: tuple[str, ...] = ()

    def at(self, address: str | None) -> WebRules:
        """Return the rules for a connection to this address: of loopback, the one it came to."""
        return replace(self, host=address) if address and is_loopback(self.host) else self

    def refusal(
        self, method: str, headers: Mapping[str, str], types: Iterable[str] = (JSON,)
    ) -> SaxError | None:
        """Return why a request is refused, PermissionDenied or InvalidRequest; None: it is not.

        headers: by names in lower case. types: content types that the route takes from pages.
        """
        if self.keys or ANY in self.origins:
            return None
        host = headers.get("host", "")
        if host and not self._has_name(host_name(host)):
            return PermissionDenied(
                f"without keys this server is called by names of this machine, and not as "
                f"{quoted(host)}: call it as 127.0.0.1 or localhost, or {self.remedy}"
            )
        return None if method in _READING else self._refused_change(headers, types)

    def _has_name(self, name: str) -> bool:
        """Return True if the server may be called so; beyond loopback nobody knows its names."""
        if not is_loopback(self.host) or is_loopback(name) or name.endswith(".localhost"):
            return True
        return name in (host_name(origin.partition("://")[2]) for origin in self.origins)

    def _refused_change(self, headers: Mapping[str, str], types: Iterable[str]) -> SaxError | None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if (origin is None and site is None) or origin in self.origins:
            return None
        if not (site in _OWN_SITES if site else _is_at(origin or "", headers.get("host", ""))):
            return PermissionDenied(
                f"a web page of {quoted(origin or 'another site')} may change nothing here, and "
                f"ask no model: {self.remedy}"
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind not in types:
            return InvalidRequest(
                f"the content type {quoted(kind)} is not taken from web pages: send "
                f"{' or '.join(types)}",
                param="content-type",
            )
        return None


def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port and brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_at(origin: str, host: str) -> bool:
    """Return True if the page came from the host that it calls."""
    return bool(host) and origin.partition("://")[2].lower() == host.lower()
