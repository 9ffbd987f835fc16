"""An object store in memory, as several processes see it over a network that fails.

Every operation takes time on the way there and on the way back. On either way it can get lost, or
be held up until long after its caller has given up or died: a write that lands late is the worst
that a store does.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sax.storage.object_store import ObjectExists, ObjectMissing, StoreUnavailable

Result = TypeVar("Result")


@dataclass
class Bucket:
    """What is stored. Whole objects, strictly consistent, as all backends are."""

    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failing: float = 0.0  # the share of operations that get lost, half of them after they were done
    stalled: asyncio.Event = field(default_factory=asyncio.Event)  # set: nothing is held up
    whole: asyncio.Event = field(default_factory=asyncio.Event)  # set: nothing was taken away
    harmed: bool = False  # something was taken away once

    def __post_init__(self) -> None:
        self.stalled.set()
        self.whole.set()

    def take_all(self) -> Callable[[], None]:
        """Empty the bucket; call the result to have everything back, and only that."""
        there, self.objects = self.objects, {}
        return self._harm(lambda: setattr(self, "objects", there))

    def last_record(self, folder: str) -> int:
        """The number of the last record that a beat names too; 0 if there is none."""
        records, beats = self.names(f"{folder}/records"), self.names(f"{folder}/beats")
        last = _number(records[-1]) if records else 0
        return last if beats and _named(self.objects[beats[-1]]) >= last else 0

    def take_last(self, folder: str) -> Callable[[], None]:
        """Delete the last record; call the result to have it back."""
        last = self.names(f"{folder}/records")[-1]
        data = self.objects.pop(last)
        return self._harm(lambda: self.objects.__setitem__(last, data))

    def _harm(self, mend: Callable[[], None]) -> Callable[[], None]:
        self.harmed = True
        self.whole.clear()

        def back() -> None:
            mend()
            self.whole.set()

        return back

    def create(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise ObjectExists(name)
        self.objects[name] = data

    def get(self, name: str) -> bytes:
        if name not in self.objects:
            raise ObjectMissing(name)
        return self.objects[name]

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(f"{prefix}/"))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])


def _named(beat: bytes) -> int:
    return json.loads(beat)["text"]["sequence"]


class View:
    """The bucket as one process sees it: an ObjectStore."""

    timeout_s = 4.0

    def __init__(self, bucket: Bucket, luck: random.Random) -> None:
        self._bucket = bucket
        self._luck = luck
        self._way = asyncio.Event()  # set: this process is connected, and is not paused
        self._way.set()
        self._dead = False

    def die(self) -> None:
        """The process is gone: nothing new leaves it, and what is on its way may still land."""
        self._dead = True

    def cut(self) -> None:
        """Nothing gets through until `heal`; what is on its way waits there."""
        self._way.clear()

    def heal(self) -> None:
        self._way.set()

    async def create(self, name: str, data: bytes) -> None:
        await self._operate(lambda: self._bucket.create(name, data))

    async def replace(self, name: str, data: bytes) -> None:
        await self._operate(lambda: self._bucket.objects.__setitem__(name, data))

    async def get(self, name: str) -> bytes:
        return await self._operate(lambda: self._bucket.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._operate(lambda: self._bucket.names(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._operate(lambda: self._bucket.delete(names))

    async def _operate(self, operation: Callable[[], Result]) -> Result:
        if self._dead:
            raise StoreUnavailable("this process is dead")
        # A task of its own: the network goes on when the caller has timed out or was killed.
        task = asyncio.ensure_future(self._travel(operation))
        task.add_done_callback(_ignore)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.shield(task)
        except TimeoutError as exc:
            raise StoreUnavailable("the store did not answer in time") from exc

    async def _travel(self, operation: Callable[[], Result]) -> Result:
        lost = self._luck.random() < self._bucket.failing
        done = self._luck.random() < 0.5
        await self._on_the_way()
        if lost and not done:
            raise StoreUnavailable("the request was lost")
        result = operation()
        await self._on_the_way()
        if lost:
            raise StoreUnavailable("the answer was lost")
        return result

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self._luck.uniform(0.001, 0.02))
        await self._way.wait()
        await self._bucket.stalled.wait()


def _ignore(task: asyncio.Future[object]) -> None:
    """Nobody waits any more for what failed on its way."""
    if not task.cancelled():
        task.exception()
