"""The store that a route needs, or the error that says how to have one."""

from __future__ import annotations

from sax.errors import InvalidRequest, PermissionDenied
from sax.storage.object_store import ObjectStore


def needed(store: ObjectStore | None, what: str, param: str | None = None) -> ObjectStore:
    """Return the store. Raises InvalidRequest if the gateway has none.

    what: things that it would keep, in the plural.
    """
    if store is None:
        raise InvalidRequest(
            f"this gateway keeps no {what}: start it with --files and a folder, or a bucket's URL",
            param=param,
        )
    return store


def refuse_batches() -> None:
    """Raise PermissionDenied: the operator wants neither files nor batches."""
    raise PermissionDenied(
        "this gateway takes no files and runs no batches (--batches off): send requests one by "
        "one, or ask its operators"
    )
