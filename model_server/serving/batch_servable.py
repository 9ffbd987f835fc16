"""A loaded model that answers in batches: its queues, and the requests on their way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from model_server.engine.worker import Worker
from model_server.loading.loaded_batches import ONLY, LoadedBatches
from model_server.loading.loaded_model import HeldMemory
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from sax.activity import IDLE
from sax.errors import Internal, NotLoaded, QueueFull, SaxError

_RECENT_BATCHES = 10

L = TypeVar("L", bound=LoadedBatches, covariant=True)
Other = TypeVar("Other", bound=LoadedBatches)
logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Run = Callable[[list[Item]], Sequence[Answer | SaxError]]

_RETRY_S = 1.0


class BatchServable(Generic[L]):
    """Runs on the event loop; batches of all queues run on one thread, in turn."""

    note = ""
    kernels = ""
    activity = IDLE

    def __init__(self, model_id: str, loaded: L) -> None:
        self.model_id = model_id
        self.loaded = loaded
        self.kind = loaded.kind
        self.weights = None  # another checkpoint is another load
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.prompt_tokens = 0  # of texts
        self.failure: str | None = None  # errors end a request, never the model
        self.inside = 0  # requests that are prepared here, before and between their turns
        self.held = 0  # bytes of the host that these hold
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batchers: dict[str, Batcher[Any, Any]] = {
            name: Batcher(
                loaded.runner.run,
                self._thread.worker,
                name=model_id,
                most=batching.most,
                wait_s=batching.wait_s,
                queue=batching.queue,
                group=loaded.runner.group,
                devices=loaded.devices,
                on_batch=self._count,
            )
            for name, batching in loaded.batching.items()
        }

    @property
    def running(self) -> int:
        """Items in the running batches."""
        return sum(batcher.running for batcher in self._batchers.values())

    @property
    def waiting(self) -> int:
        """Items that wait for a batch, and requests that are prepared."""
        return max(self.queued, self.inside - self.running)

    @property
    def queued(self) -> int:
        """Items that wait for a batch."""
        return sum(batcher.waiting for batcher in self._batchers.values())

    def part(self, kind: type[Other]) -> BatchServable[Other] | None:
        """Return what serves such a model; None: this is one of another kind."""
        return cast("BatchServable[Other]", self) if isinstance(self.loaded, kind) else None

    async def ask(self, item: Any, cost: BatchCost | None = None, queue: str = ONLY) -> Any:
        """Return an item's answer. Raises its own error, QueueFull, NotLoaded."""
        return await self._batchers[queue].ask(item, cost)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request in whose items are not all in a queue; an unload lets it end."""
        self.inside += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._idle.set()

    async def close(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                await self._idle.wait()
        await self._thread.close(list(self._batchers.values()), max(0.0, end_s - loop.time()))

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)


@dataclass(slots=True, eq=False)
class _QueuedItem(Generic[Item, Answer]):
    item: Item
    group: Hashable
    since_s: float
    answer: asyncio.Future[Answer]
    cost: BatchCost | None


class Batcher(Generic[Item, Answer]):
    """The queue of one method. Items of different groups never share a batch."""

    def __init__(
        self,
        run: Run[Item, Answer],
        worker: Worker,
        *,
        name: str,  # model name, for errors
        most: int,  # items per batch
        wait_s: float,  # longest wait of an item for others to fill its batch
        queue: int,  # items that may wait
        group: Callable[[Item], Hashable] = lambda item: None,
        on_batch: Callable[[int], None] = lambda size: None,
        devices: int = 1,  # that compute a batch together
    ) -> None:
        self._run = run
        self._devices = devices
        self._worker = worker
        self._name = name
        self._most = most
        self._wait_s = wait_s
        self._queue = queue
        self._group = group
        self._on_batch = on_batch
        self._waiting: deque[_QueuedItem[Item, Answer]] = deque()
        self._batch: list[_QueuedItem[Item, Answer]] = []  # running now
        self._arrived = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._batch)

    async def ask(self, item: Item, cost: BatchCost | None = None) -> Answer:
        """Return the item's answer, and add its part of its batch to the cost. Cancelling the call
        removes the item from the queue.

        Raises QueueFull, NotLoaded when closed, and the item's own error.
        """
        if self._closed:
            raise self._unloaded()
        if len(self._waiting) >= self._queue:
            raise QueueFull(
                f"this replica is full ({len(self._waiting)} requests queued for {self._name}); "
                f"retry in {_RETRY_S:.0f} s",
                retry_after_s=_RETRY_S,
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        waiting = _QueuedItem(item, self._group(item), loop.time(), answer, cost)
        self._waiting.append(waiting)
        self._arrived.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        try:
            return await answer
        finally:
            if waiting in self._waiting:  # the caller went away
                self._waiting.remove(waiting)

    async def close(self, drain_s: float) -> None:
        """Refuse new items, let queued ones finish within the time, fail the rest."""
        self._closed = True
        self._arrived.set()  # stop waiting for a batch to fill
        if self._serving is not None and not self._serving.done():
            await asyncio.wait([self._serving], timeout=drain_s)
        for waiting in (*self._batch, *self._waiting):
            if not waiting.answer.done():
                waiting.answer.set_exception(self._unloaded())
        self._waiting.clear()

    async def _serve(self) -> None:
        while self._waiting:
            await self._gather()
            self._batch = self._take()
            if self._batch:
                await self._answer(self._batch)
            self._batch = []

    async def _gather(self) -> None:
        """Wait until a batch is full or its first item has waited long enough."""
        end_s = self._waiting[0].since_s + self._wait_s
        try:
            async with asyncio.timeout_at(end_s):
                while self._waiting and not self._closed and len(self._waiting) < self._most:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass

    def _take(self) -> list[_QueuedItem[Item, Answer]]:
        """Take the first item and others of its group, in order; the rest keep their places."""
        if not self._waiting:
            return []
        group = self._waiting[0].group
        taken = [waiting for waiting in self._waiting if waiting.group == group][: self._most]
        chosen = set(map(id, taken))
        self._waiting = deque(each for each in self._waiting if id(each) not in chosen)
        return taken

    async def _answer(self, batch: list[_QueuedItem[Item, Answer]]) -> None:
        self._on_batch(len(batch))
        items = [waiting.item for waiting in batch]
        answers: Sequence[Answer | SaxError]
        try:
            answers, seconds = await self._worker.run(lambda: self._timed(items))
            self._charge(batch, seconds)
        except Exception:
            logger.exception("a batch of %s failed", self._name)
            answers = [Internal("internal error; the server's log has the details") for _ in batch]
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue  # its caller went away
            if isinstance(answer, SaxError):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _timed(self, items: list[Item]) -> tuple[Sequence[Answer | SaxError], float]:
        """Run on the worker; return the seconds too."""
        began_s = time.perf_counter()
        answers = self._run(items)
        return answers, time.perf_counter() - began_s

    def _charge(self, batch: list[_QueuedItem[Item, Answer]], seconds: float) -> None:
        for waiting in batch:
            if waiting.cost is not None:
                waiting.cost.add(seconds, self._devices, len(batch))

    def _unloaded(self) -> NotLoaded:
        return NotLoaded(f"{self._name} was unloaded before this request was done")


_LAST_BATCH_S = 5.0  # how long a batch may run past the drain time before it is abandoned


class RunnerThread:
    """Runs on the event loop, except for the runner's jobs."""

    def __init__(self, model_id: str, runner: HeldMemory) -> None:
        self.worker = Worker(f"batches {model_id}")
        self._model_id = model_id
        self._runner = runner

    async def close(self, batchers: Sequence[Batcher[Any, Any]], drain_s: float) -> None:
        """Drain the queues, then free the runner after its last batch. Idempotent."""
        await asyncio.gather(*(batcher.close(drain_s) for batcher in batchers))
        freed = self.worker.run(self._runner.close)
        self.worker.stop()
        _, stuck = await asyncio.wait([freed], timeout=_LAST_BATCH_S)
        if stuck:
            logger.warning("a batch of %s does not end; its memory is not freed", self._model_id)
