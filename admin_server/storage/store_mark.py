"""The mark of a cell's store: a random id, written once, that tells it from every other store.

    sax/<cell>/mark/000000000001

A leader whose folder or bucket was deleted, or replaced by another one, could go on writing there,
and nobody would find what it acknowledged.
"""

from __future__ import annotations

import uuid

import msgspec

from admin_server.storage.envelope import CorruptLog, name_of, unwrap, wrap
from sax.names import CellId
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore, StoreReplaced

KIND = "mark"
_NUMBER = 1


class StoreMark:
    """The mark as one process knows it: once learned, no other store will do."""

    def __init__(self, store: ObjectStore, cell: CellId) -> None:
        self._store = store
        self._cell = cell
        self._name = name_of(cell, KIND, _NUMBER)
        self._known = ""

    @property
    def settled(self) -> bool:
        """True once the mark is known."""
        return bool(self._known)

    async def settle(self) -> None:
        """Learn the mark; write one if the store has none. Later calls check it.

        Raises StoreReplaced, CorruptLog, StoreUnavailable.
        """
        if self._known:
            await self.check()
        else:
            self._known = await self._read() or await self._create()

    async def check(self) -> None:
        """Raises StoreReplaced if the store has another mark or none, StoreUnavailable."""
        try:
            found = await self._read()
        except CorruptLog as exc:
            raise self._replaced(exc.text) from exc
        if not found:
            raise self._replaced(f"{self._name} is gone")
        if found != self._known:
            raise self._replaced(f"{self._name} says {found} and not {self._known}")

    async def _read(self) -> str:
        """The mark in the store, "" if there is none."""
        try:
            data = await self._store.get(self._name)
        except ObjectMissing:
            return ""
        return msgspec.json.decode(unwrap(self._cell, KIND, _NUMBER, data)[1], type=str)

    async def _create(self) -> str:
        mark = uuid.uuid4().hex
        data = wrap(self._cell, KIND, _NUMBER, mark, msgspec.json.encode(mark))
        try:
            await self._store.create(self._name, data)
        except ObjectExists:  # another admin server was faster
            return await self._read()
        return mark

    def _replaced(self, why: str) -> StoreReplaced:
        return StoreReplaced(
            f"the store of {self._cell} is not the one this admin server started with ({why}): the "
            "folder or bucket of --fs_root was deleted or replaced, so no change is acknowledged. "
            "Bring it back, e.g. from a backup, and this server goes on by itself; to begin with "
            "what is there now, restart it"
        )
