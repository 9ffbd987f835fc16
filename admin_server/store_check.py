"""A look, once at the start, whether a store can be trusted with the log.

Some S3 servers take a create-if-absent for a plain write and say that all is well: two admin
servers would then overwrite each other's records, and nobody would ever be deposed.
"""

from __future__ import annotations

import logging
import uuid

from admin_server.object_store import ObjectExists, ObjectStore, StoreUnavailable
from sax.errors import InvalidRequest
from sax.names import CellId

_log = logging.getLogger(__name__)


async def check_creates_once(store: ObjectStore, cell: CellId) -> None:
    """Raises InvalidRequest if the store creates an object twice, StoreUnavailable if it fails."""
    name = f"{str(cell).strip('/')}/probes/{uuid.uuid4().hex}"
    await _create(store, name, b"first")
    twice = await _create(store, name, b"second")
    try:
        await store.delete([name])
    except StoreUnavailable as exc:
        # No harm to the log, only a few bytes that stay; compaction will complain for itself.
        _log.warning("%s stays there: %s", name, exc.text)
    if twice:
        raise InvalidRequest(
            "the store of --fs_root ignores create-if-absent (If-None-Match: *): it wrote the "
            f"object {name} twice, so it cannot keep two admin servers apart and would lose what "
            "was published; give one that honours it, such as Amazon S3, Google Cloud Storage, "
            "Azure, MinIO, SeaweedFS or a local folder",
            param="fs_root",
        )


async def _create(store: ObjectStore, name: str, data: bytes) -> bool:
    """Whether it was created now; the backend's own retry may find its first try there."""
    try:
        await store.create(name, data)
    except ObjectExists:
        return False
    return True
