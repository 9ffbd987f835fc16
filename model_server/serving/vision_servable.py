"""A loaded model of images: each is decoded in another process, then all share one queue."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import numpy as np

from model_server.loading.images.image_decoder import ImageDecoder, image_decoder
from model_server.loading.loaded import LoadedVision, SeenImage
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from sax.activity import IDLE

_RECENT_BATCHES = 10
_WAIT_S = 0.002  # well below one step


class VisionServable:
    """Runs on the event loop; batches run on one thread."""

    kind = "a model of images"
    note = ""
    kernels = ""
    activity = IDLE

    def __init__(
        self, model_id: str, loaded: LoadedVision, decoder: ImageDecoder | None = None
    ) -> None:
        """decoder: None: the process's own."""
        self.model_id = model_id
        self.loaded = loaded
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.failure: str | None = None  # errors end a request, never the model
        self._decoder = decoder or image_decoder()
        self.decoding = 0  # images that are with the decoder
        self._all_decoded = asyncio.Event()
        self._all_decoded.set()
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batcher: Batcher[np.ndarray, SeenImage] = Batcher(
            loaded.runner.see,
            self._thread.worker,
            name=model_id,
            most=loaded.runner.batch,
            wait_s=_WAIT_S,
            queue=loaded.queue,
            devices=loaded.devices,
            on_batch=self._count,
        )

    @property
    def running(self) -> int:
        """Images in the running batch."""
        return self._batcher.running

    @property
    def waiting(self) -> int:
        """Images that wait for a batch, or to be decoded."""
        return self._batcher.waiting + self.decoding

    async def see(self, image: bytes, cost: BatchCost | None = None) -> SeenImage:
        """Return what the model computes of an encoded image.

        Raises InvalidRequest for one that cannot be decoded, QueueFull, NotLoaded, Unavailable.
        """
        pixels = await self._decoded(image)
        return await self._batcher.ask(pixels, cost)

    async def close(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                await self._all_decoded.wait()
        await self._thread.close([self._batcher], max(0.0, end_s - loop.time()))

    async def _decoded(self, image: bytes) -> np.ndarray:
        self.decoding += 1
        self._all_decoded.clear()
        try:
            return await asyncio.wrap_future(self._decoder.submit(image, self.loaded.form))
        finally:
            self.decoding -= 1
            if not self.decoding:
                self._all_decoded.set()

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)
