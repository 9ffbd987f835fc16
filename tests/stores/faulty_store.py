"""A store that fails, waits or loses its answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Literal, TypeVar

from sax.storage.object_store import MeasuredStore, StoreUnavailable, open_store

Result = TypeVar("Result")
Fault = Literal["", "before", "after"]


class FaultyStore:
    """Another store, and what goes wrong on the way to it.

    Writes fail before they are done, or after: then only the answer is lost. With the gate closed
    every write waits. `asleep` names the operations that never answer.
    """

    def __init__(self, store: MeasuredStore | None = None) -> None:
        self.store = store or open_store("memory://")
        self.fails: Fault = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.asleep: set[str] = set()
        self.writes = 0  # that have come, done or not

    async def create(self, name: str, data: bytes) -> None:
        await self._write("create", self.store.create(name, data))

    async def replace(self, name: str, data: bytes) -> None:
        await self._write("replace", self.store.replace(name, data))

    async def get(self, name: str) -> bytes:
        return await self._answer("get", self.store.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._answer("names", self.store.names(prefix))

    async def sizes(self, prefix: str) -> dict[str, int]:
        return await self._answer("sizes", self.store.sizes(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._answer("delete", self.store.delete(names))

    async def _write(self, operation: str, work: Awaitable[None]) -> None:
        self.writes += 1
        await self.gate.wait()
        if self.fails == "before":
            asyncio.ensure_future(work).cancel()
            raise StoreUnavailable("the store is on fire")
        await self._answer(operation, work)
        if self.fails == "after":
            raise StoreUnavailable("the store is on fire")

    async def _answer(self, operation: str, work: Awaitable[Result]) -> Result:
        result = await work
        if operation in self.asleep:
            await asyncio.Event().wait()
        return result
