"""PatientStore: a store whose calls are tried again, for work that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sax.storage.object_store import ObjectStore, StoreUnavailable

Result = TypeVar("Result")

_TRIES = 8
PAUSE_S = 0.25  # before the second try; each pause is twice as long as the one before


class PatientStore:
    """An ObjectStore over another one.

    `create` is tried once: after a failure the object may be there, and only the caller can tell
    whether it is its own.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def create(self, name: str, data: bytes) -> None:
        await self._store.create(name, data)

    async def replace(self, name: str, data: bytes) -> None:
        await self._again(lambda: self._store.replace(name, data))

    async def get(self, name: str) -> bytes:
        return await self._again(lambda: self._store.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._again(lambda: self._store.names(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._again(lambda: self._store.delete(names))

    async def _again(self, call: Callable[[], Awaitable[Result]]) -> Result:
        for number in range(_TRIES - 1):
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_S * 2**number)
        return await call()
