"""Admission: count requests in progress and refuse new ones while the process drains.

Shared by the handlers of every kind of model. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping

from model_server.serving.method_stats import WindowCount
from model_server.serving.servable import Servable
from sax.auth.acl import ALL_METHODS, Acl, MethodAcls, Principal, parse_acls
from sax.errors import (
    Cancelled,
    InvalidRequest,
    PermissionDenied,
    QueueFull,
    ShuttingDown,
    UnsupportedParameter,
)
from sax.format import shortened

logger = logging.getLogger(__name__)


def check_method(principal: Principal, model_id: str, method: str, acls: MethodAcls) -> None:
    """Raise PermissionDenied unless the model's ACLs let the principal call the method."""
    acl = acls.of(method)
    if acl is not None and not acl.allows(principal):
        # Do not list who is allowed: that is for operators only.
        raise PermissionDenied(
            f"{principal.name or 'an unauthenticated caller'} may not call {shortened(method)} of "
            f"{model_id}: ask one of the model's operators to add that name to its access control "
            f"list (`sax setacl {model_id} {shortened(method)} NAMES`)"
        )


def check_admin(principal: Principal, admins: Acl, doing: str) -> None:
    """Raise PermissionDenied unless the principal may load, change and unload models here."""
    if not admins.allows(principal):
        raise PermissionDenied(
            f"{principal.name or 'an unauthenticated caller'} may not {doing} on this model "
            f"server: only {admins} may (its --admin_acl), the admin server of its cell"
        )


def check_enforceable(texts: Mapping[str, str], *, enforced: bool) -> None:
    """Reject ACLs that are malformed or that this server cannot enforce.

    Raises InvalidRequest for malformed lists, and UnsupportedParameter for any list when callers
    are not authenticated: it would look like protection and protect nothing.
    """
    parse_acls(texts)
    if not enforced and any(texts.values()):
        raise UnsupportedParameter(
            "acls cannot be enforced: this model server does not authenticate callers; start it "
            "with --tokens (or --tls_ca) and --admin_acl, or publish without acls",
            param="acls",
        )


def tell_of_idle(model_id: str, acls: MethodAcls, methods: Collection[str]) -> None:
    """Warn about ACLs for methods that the model does not serve: the name may be misspelt."""
    idle = sorted(name for name in acls.texts if name not in methods and name != ALL_METHODS)
    if idle and methods:
        logger.warning(
            "%s has access control lists for %s, which it does not serve; it serves %s",
            model_id,
            ", ".join(idle),
            ", ".join(methods),
        )


class Admission:
    """Admission control for the whole process."""

    def __init__(self) -> None:
        self.draining = False
        self.rejections = WindowCount()  # queue full or draining
        self._inside = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def check_open(self) -> None:
        """Raise ShuttingDown while draining, and count the rejection."""
        if self.draining:
            self.rejections.add(time.monotonic())
            raise ShuttingDown("this model server is shutting down; try another replica")

    def enter(self) -> None:
        """Count a request in; call `leave` when it is over."""
        self._inside += 1
        self._idle.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._idle.set()

    def refused(self, exc: BaseException) -> None:
        if isinstance(exc, (QueueFull, ShuttingDown)):
            self.rejections.add(time.monotonic())

    @contextlib.contextmanager
    def request(self, servable: Servable, method: str) -> Iterator[None]:
        """Count one whole request and record its latency and outcome."""
        stats, began_s = servable.methods[method], time.monotonic()
        stats.begin()
        self.enter()
        try:
            yield
        except (asyncio.CancelledError, Cancelled):
            stats.leave()
            servable.cancelled += 1
            raise
        except BaseException as exc:
            stats.fail(time.monotonic())
            self.refused(exc)
            raise
        else:
            now = time.monotonic()
            stats.succeed(now, now - began_s)
        finally:
            self.leave()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for running ones; return False on timeout."""
        self.draining = True
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


def refusal(servable: Servable, method: str) -> InvalidRequest:
    return InvalidRequest(
        f"{servable.model_id} is {servable.kind} and does not serve {shortened(method)}; it serves "
        f"{', '.join(servable.methods)}",
        param="model",
    )
