"""Access checks: who may call a method of a model, and who may load models."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from sax.acl import ALL_METHODS, Acl, MethodAcls, parse_acls
from sax.errors import PermissionDenied, UnsupportedParameter
from sax.identity import Principal

logger = logging.getLogger(__name__)


def check_method(principal: Principal, model_id: str, method: str, acls: MethodAcls) -> None:
    """Raise PermissionDenied unless the model's ACLs let the principal call the method."""
    acl = acls.of(method)
    if acl is not None and not acl.allows(principal):
        # Do not list who is allowed: that is for operators only.
        raise PermissionDenied(
            f"{principal.name or 'an unauthenticated caller'} may not call {method} of "
            f"{model_id}: ask one of the model's operators to add that name to its access control "
            f"list (`sax setacl {model_id} {method} NAMES`)"
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
