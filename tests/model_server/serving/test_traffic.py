"""What GetStatus tells of the requests of each kind of model: the autoscaler goes by it."""

from __future__ import annotations

import asyncio
import threading
import time

from sax.proto import modelet_pb2
from sax.types import ServableInfo
from sax.wire.embed import encode_embed
from sax.wire.extra_inputs import encode_custom
from sax.wire.servers import decode_status
from tests.model_server.fake_model import LIMITS, FakeModels
from tests.model_server.fake_server import MODEL, Served, Stream, serving
from tests.model_server.waiting import until

EMBEDDER, CUSTOM = "/sax/test/embedder", "/sax/test/custom"


async def told(served: Served, model: str) -> ServableInfo:
    reply = await served.modelet.GetStatus(modelet_pb2.GetStatusRequest())
    return next(info for info in decode_status(reply).servables if info.model_id == model)


def figures(info: ServableInfo) -> tuple[int, int, int]:
    return info.running, info.queued, info.arrived


async def test_sequences_with_a_slot_run_and_the_others_are_queued() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream, ids = Stream(served), range(LIMITS.slots + 2)
        for id in ids:
            await stream.ask(id, max_tokens=200)
        servable = served.servable()
        await until(lambda: servable.stats().slots_used == LIMITS.slots or gate.release())
        await until(lambda: servable.stats().waiting == 2)
        assert figures(await told(served, MODEL)) == (LIMITS.slots, 2, LIMITS.slots + 2)
        gate.release(10_000)
        await stream.until_over(*ids)
        await until(lambda: servable.stats().running == 0)
        assert figures(await told(served, MODEL)) == (0, 0, LIMITS.slots + 2)


async def test_a_request_that_is_over_has_still_arrived() -> None:
    async with serving(FakeModels()) as served:
        assert figures(await told(served, MODEL)) == (0, 0, 0)
        stream = Stream(served)
        for id in range(3):
            await stream.ask(id, max_tokens=1)
        await stream.until_over(*range(3))
        assert (await told(served, MODEL)).arrived == 3


async def test_embedders_and_custom_models_tell_of_theirs() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        calls = [served.tokens.Embed(encode_embed(EMBEDDER, ["x"]))]
        calls += [served.custom.Custom(encode_custom(CUSTOM, b"x", "upper", None))]
        servables = [served.server.servables.get(model) for model in (EMBEDDER, CUSTOM)]
        await until(lambda: all(servable.running == 1 for servable in servables))
        calls += [served.tokens.Embed(encode_embed(EMBEDDER, ["y", "z"]))]
        calls += [served.custom.Custom(encode_custom(CUSTOM, b"y", "upper", None))]
        await until(lambda: [servable.waiting for servable in servables] == [2, 1])
        assert figures(await told(served, EMBEDDER)) == (1, 2, 2)
        assert figures(await told(served, CUSTOM)) == (1, 1, 2)
        models.batches.set()
        await asyncio.gather(*calls)


async def test_only_the_first_token_tells_how_long_the_request_waited() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)
        began_s = time.monotonic()
        for id in range(LIMITS.slots + 1):
            await stream.ask(id, max_tokens=3)
        servable = served.servable()
        await until(lambda: bool(servable.stats().waiting or gate.release()))
        await asyncio.sleep(0.05)
        gate.release(10_000)
        await stream.until_over(*range(LIMITS.slots + 1))
        waited_s = [[chunk.queue_s for chunk in stream.chunks[id]] for id in stream.chunks]
        assert all(first > 0 and not any(rest) for first, *rest in waited_s)
        # Less than it slept: its wait is counted from the engine's next look at the queue.
        assert 0.04 <= max(first for first, *_ in waited_s) <= time.monotonic() - began_s
