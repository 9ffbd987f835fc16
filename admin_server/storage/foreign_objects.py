"""Find objects below a cell's folder that no admin server wrote.

They harm nothing while an admin server runs, and keep the next one from starting (see envelope).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sax.client.location import LOCATION
from sax.names import CellId
from sax.storage.object_store import ObjectStore

_NUMBERED = re.compile(r"(records|snapshots|archive|mark)/\d{12}|(beats|roster)/\d{12}/\d{12}")
_PROBE = re.compile(r"probes/[0-9a-f]{32}")


async def find_foreign(store: ObjectStore, cell: CellId) -> tuple[str, ...]:
    """The names of foreign objects of a cell. Raises StoreUnavailable."""
    folder = str(cell).strip("/")
    return foreign_names(folder, await store.names(folder))


def foreign_names(folder: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not _is_ours(name.removeprefix(f"{folder}/")))


def _is_ours(name: str) -> bool:
    return name == LOCATION or bool(_NUMBERED.fullmatch(name) or _PROBE.fullmatch(name))
