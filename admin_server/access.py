"""Who may change what in a cell: the cell's own list, and each model's.

Decides from values: the principal who asks, the lists, and whether anyone proves anything here at
all. Knows nothing of tokens, certificates or the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from sax.acl import NOBODY, Acl, parse_acl
from sax.errors import PermissionDenied, UnsupportedParameter
from sax.identity import Principal
from sax.types import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rights in one cell."""

    enforced: bool = False  # False: nobody proves who they are, so everyone may do everything
    cell: str = ""
    admins: Acl = NOBODY  # may do anything

    def check_cell(self, principal: Principal, doing: str) -> None:
        """May they change the cell itself, as by publishing? Raises PermissionDenied."""
        if self.enforced and not self.admins.allows(principal):
            raise PermissionDenied(
                f"{_who(principal)} may not {doing} in {self.cell}: that is for {self.admins} "
                "(--admin_acl of its admin server); ask one of them"
            )

    def check_model(self, principal: Principal, spec: ModelSpec | None, doing: str) -> None:
        """May they change this model? None: there is no such model, which is told elsewhere.

        Raises PermissionDenied.
        """
        if not self.enforced or spec is None or self.admins.allows(principal):
            return
        owners = parse_acl(spec.admin_acl, "admin_acl")
        if not owners.allows(principal):
            raise PermissionDenied(
                f"{_who(principal)} may not {doing} {spec.model_id}: that is for {owners} (its "
                f"admin_acl) and {self.admins} (--admin_acl of the admin server); ask one of them"
            )

    def check_enforceable(self, spec: ModelSpec) -> None:
        """Raises UnsupportedParameter for lists that nobody here would enforce."""
        if self.enforced or not (spec.admin_acl or any(spec.acls.values())):
            return
        param = "admin_acl" if spec.admin_acl else "acls"
        raise UnsupportedParameter(
            f"{param} cannot be enforced: nobody proves who they are to this admin server; start "
            "every server of the cell with --tokens or --tls_ca, or leave it empty",
            param=param,
        )


EVERYONE_MAY = Access()


def _who(principal: Principal) -> str:
    return principal.name or "someone who proved nothing"
