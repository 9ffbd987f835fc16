"""Permissions of a cell: the cell-wide admin ACL and each model's own.

Pure: decides from the principal, the ACLs, and whether authentication is enforced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sax.auth.acl import NOBODY, Acl, Principal, parse_acl
from sax.errors import PermissionDenied, UnsupportedParameter
from sax.types import ModelSpec, Rights
from sax.weights import METHOD


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    enforced: bool = False  # False: callers are not authenticated, everything is allowed
    cell: str = ""
    admins: Acl = NOBODY  # allowed everything

    def granting(self, acl: str) -> Access:
        """The same, where a list that operators set is allowed everything too."""
        if not acl:
            return self
        more = parse_acl(acl, "admin_acl")
        names, everyone = self.admins.names | more.names, self.admins.everyone or more.everyone
        return replace(self, admins=Acl(names, everyone))

    def check_cell(self, principal: Principal, doing: str) -> None:
        if self.enforced and not self.admins.allows(principal):
            raise PermissionDenied(
                f"{_who(principal)} may not {doing} in {self.cell}; allowed: {self.admins} "
                "(--admin_acl of its admin server, and `saxutil setacl`)"
            )

    def check_model(self, principal: Principal, spec: ModelSpec | None, doing: str) -> None:
        """A model that does not exist (None) passes: the caller reports that."""
        if not self.enforced or spec is None or self.admins.allows(principal):
            return
        owners = parse_acl(spec.admin_acl, "admin_acl")
        if not owners.allows(principal):
            raise PermissionDenied(
                f"{_who(principal)} may not {doing} {spec.model_id}; allowed: {owners} (its "
                f"admin_acl) and {self.admins} (--admin_acl of the admin server)"
            )

    def check_weights(self, principal: Principal, spec: ModelSpec | None) -> None:
        """Let those of the model's list for `weights.update` change its weights, beside those who
        may change the model; its list for all methods does not count."""
        listed = "" if spec is None else spec.acls.get(METHOD, "")
        if not parse_acl(listed, "acls").allows(principal):
            self.check_model(principal, spec, f"change the weights ({METHOD}) of")

    def rights(self, principal: Principal, specs: Iterable[ModelSpec]) -> Rights:
        """Return what `check_cell` and `check_model` let a principal change."""
        if not self.enforced or self.admins.allows(principal):
            return Rights(publish=True)
        owned = (spec for spec in specs if parse_acl(spec.admin_acl, "admin_acl").allows(principal))
        return Rights(models=frozenset(spec.model_id for spec in owned))

    def check_enforceable(self, spec: ModelSpec) -> None:
        if spec.admin_acl or any(spec.acls.values()):
            self.check_asks("admin_acl" if spec.admin_acl else "acls")

    def check_asks(self, param: str) -> None:
        """Raise UnsupportedParameter for a list that nobody would enforce."""
        if self.enforced:
            return
        raise UnsupportedParameter(
            f"{param} cannot be enforced: this admin server does not authenticate callers; start "
            "every server of the cell with --tokens or --tls_ca, or leave it empty",
            param=param,
        )


EVERYONE_MAY = Access()


def _who(principal: Principal) -> str:
    return principal.name or "an unauthenticated caller"
