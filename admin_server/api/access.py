"""Permissions of a cell: the cell-wide admin ACL and each model's own.

Pure: decides from the principal, the ACLs, and whether authentication is enforced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sax.auth.acl import NOBODY, Acl, Principal, parse_acl
from sax.errors import PermissionDenied, UnsupportedParameter
from sax.types import ModelSpec, Rights


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    enforced: bool = False  # False: callers are not authenticated, everything is allowed
    cell: str = ""
    admins: Acl = NOBODY  # allowed everything

    def check_cell(self, principal: Principal, doing: str) -> None:
        if self.enforced and not self.admins.allows(principal):
            raise PermissionDenied(
                f"{_who(principal)} may not {doing} in {self.cell}; allowed: {self.admins} "
                "(--admin_acl of its admin server)"
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

    def rights(self, principal: Principal, specs: Iterable[ModelSpec]) -> Rights:
        """Return what `check_cell` and `check_model` let a principal change."""
        if not self.enforced or self.admins.allows(principal):
            return Rights(publish=True)
        owned = (spec for spec in specs if parse_acl(spec.admin_acl, "admin_acl").allows(principal))
        return Rights(models=frozenset(spec.model_id for spec in owned))

    def check_enforceable(self, spec: ModelSpec) -> None:
        if self.enforced or not (spec.admin_acl or any(spec.acls.values())):
            return
        param = "admin_acl" if spec.admin_acl else "acls"
        raise UnsupportedParameter(
            f"{param} cannot be enforced: this admin server does not authenticate callers; start "
            "every server of the cell with --tokens or --tls_ca, or leave it empty",
            param=param,
        )


EVERYONE_MAY = Access()


def _who(principal: Principal) -> str:
    return principal.name or "an unauthenticated caller"
