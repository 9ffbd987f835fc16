"""A model server that joins: is it one, and is it where it says?

Clients are sent to its address, and models are placed there, so a wrong one is refused before
anybody believes it.
"""

from __future__ import annotations

from admin_server.cell.modelets import Modelets
from admin_server.ledger.limits import check_server
from sax.config import check_address
from sax.errors import (
    InvalidRequest,
    NotLeading,
    PermissionDenied,
    SaxError,
    Unauthenticated,
    Unavailable,
)
from sax.types import ServerInfo

_REMEDY = "start it with --advertise HOST, by which this admin server reaches it"


def check_joining(info: ServerInfo) -> None:
    """Raise InvalidRequest for impossible values."""
    check_address(info.address, "address")
    if info.data_address:
        check_address(info.data_address, "data_address")
    check_server(info)


async def dial_back(modelets: Modelets, info: ServerInfo) -> None:
    """Ask the server for its status at the address that it gives.

    Raises Unavailable if no model server answers there, InvalidRequest if another one does. One
    that refuses to talk is there: later polls tell why it does.
    """
    try:
        status = await modelets.status(info.address)
    except (Unauthenticated, PermissionDenied, NotLeading):
        return
    except SaxError as exc:
        raise Unavailable(
            f"{info.address}, where this model server says that it is, does not answer as one "
            f"({exc.text}): {_REMEDY}",
            param="address",
        ) from exc
    if status.incarnation and info.incarnation not in ("", status.incarnation):
        raise InvalidRequest(
            f"another model server answers at {info.address}: {_REMEDY}", param="address"
        )
