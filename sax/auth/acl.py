"""Access control lists, as operators write them, and callers: principals, or accounts by address.

alice, bob      these two principals
*               every authenticated caller (Saxml writes acl/all)
(nothing)       nobody where a list is required; no restriction where it is optional
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import unquote

from sax.auth.key_limits import UNLIMITED, KeyLimits
from sax.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, or an anonymous one."""

    name: str = ""  # "": authentication is off, or the caller did not authenticate
    limits: KeyLimits = UNLIMITED

    @property
    def known(self) -> bool:
        return bool(self.name)


ANYONE = Principal()

_current: ContextVar[Principal] = ContextVar("principal", default=ANYONE)


def caller() -> Principal:
    """Return the principal of the call that this task answers."""
    return _current.get()


def enter_call(principal: Principal) -> None:
    _current.set(principal)


EVERYONE = "*"
ALL_METHODS = "*"  # guards every method that has no ACL of its own

_SAXML_EVERYONE = "acl/all"
_SAXML_GROUP = "acl/"
# Letters, digits and _.@- for people and programs; / and : for a certificate's spiffe://... name.
_NAME = re.compile(r"[A-Za-z0-9_.@:/-]{1,200}")
_METHOD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MOST_NAMES = 1000
_MOST_METHODS = 100
# Saxml's methods and our lm.rerank, lm.classify: an ACL under a misspelt name would guard nothing.
_SAXML_METHODS = {
    "lm": ("generate", "generate_stream", "score", "embed", "gradient", "rerank", "classify"),
    "am": ("recognize",),
    "mm": ("generate",),
    "vm": (
        "classify",
        "generate",
        "embed",
        "detect",
        "image_to_text",
        "image_to_image",
        "text_and_image_to_text",
        "video_to_text",
    ),
}
# Same text, whole or streamed: an ACL on one also guards the other, unless that has its own.
_TWINS = {"lm.generate": "lm.generate_stream", "lm.generate_stream": "lm.generate"}


@dataclass(frozen=True, slots=True)
class Acl:
    names: frozenset[str] = frozenset()
    everyone: bool = False

    @property
    def empty(self) -> bool:
        return not self.names and not self.everyone

    def allows(self, principal: Principal) -> bool:
        """Return True for a listed principal; never for an unauthenticated one."""
        return principal.known and (self.everyone or principal.name in self.names)

    def __str__(self) -> str:
        return ", ".join([EVERYONE] * self.everyone + sorted(self.names)) or "nobody"


NOBODY = Acl()


@dataclass(frozen=True, slots=True)
class MethodAcls:
    """The ACLs of one model by method; `texts` holds them as written."""

    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    _acls: Mapping[str, Acl] = field(default_factory=dict[str, Acl])

    def of(self, method: str) -> Acl | None:
        """Return the ACL for a method, or None if everyone may call it."""
        twin = _TWINS.get(method, method)
        return self._acls.get(method) or self._acls.get(twin) or self._acls.get(ALL_METHODS)


OPEN = MethodAcls()


def check_name(name: str, param: str) -> str:
    """Return a valid principal name unchanged. Raises InvalidRequest naming `param`."""
    if not _NAME.fullmatch(name) or name.startswith(_SAXML_GROUP):
        raise InvalidRequest(
            f"{name[:80]!r} is not a principal name: use letters, digits and _.@:/- (at "
            f"most 200, not starting with {_SAXML_GROUP}), e.g. alice or team-a@example.com",
            param=param,
        )
    return name


def is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.startswith(_SAXML_GROUP)


def parse_acl(text: str, param: str) -> Acl:
    """Parse one ACL. Raises InvalidRequest naming `param`."""
    if not text.strip():
        return NOBODY
    names = [name.strip() for name in text.split(",")]
    if len(names) > _MOST_NAMES:
        raise InvalidRequest(
            f"the access control list has {len(names)} names: use at most {_MOST_NAMES}, or "
            f"{EVERYONE} for every authenticated caller",
            param=param,
        )
    plain = [name for name in names if name not in (EVERYONE, _SAXML_EVERYONE)]
    return Acl(frozenset(check_name(name, param) for name in plain), len(plain) < len(names))


def parse_acls(texts: Mapping[str, str], param: str = "acls") -> MethodAcls:
    """Parse a model's ACLs, dropping empty ones. Raises InvalidRequest naming `param`."""
    if len(texts) > _MOST_METHODS:
        raise InvalidRequest(
            f"access control lists for {len(texts)} methods: use at most {_MOST_METHODS}; the key "
            f"{ALL_METHODS} covers every method without its own list",
            param=param,
        )
    acls = {check_method(method, param): parse_acl(acl, param) for method, acl in texts.items()}
    return MethodAcls(dict(texts), {method: acl for method, acl in acls.items() if not acl.empty})


def check_method(method: str, param: str) -> str:
    """Return the method if an ACL may guard it. Raises InvalidRequest naming `param`."""
    kind, _, name = method.partition(".")
    known = _SAXML_METHODS.get(kind)
    if known is not None and name not in known:
        served = ", ".join(f"{kind}.{each}" for each in known)
        raise InvalidRequest(
            f"{method[:120]!r} is not a Saxml method, so its list would guard nothing: "
            f"use one of {served}, or {ALL_METHODS} for all",
            param=param,
        )
    if method != ALL_METHODS and not _METHOD.fullmatch(method):
        raise InvalidRequest(
            f"{method[:120]!r} is not a method name: use e.g. lm.generate, the name of a custom "
            f"method, or {ALL_METHODS} for all",
            param=param,
        )
    return method


_NETWORK_BITS = 64  # of an IPv6 address; the rest is the client's to choose


def account_of_host(host: str) -> str:
    """Return the account of a caller that did not authenticate: one per IPv4 address or network of
    IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


def account_of_peer(peer: str) -> str:
    """Return the account of a gRPC peer: ipv4:1.2.3.4:567, ipv6:%5B::1%5D:567, unix:/path."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return account_of_host(rest.rpartition(":")[0].strip("[]"))
