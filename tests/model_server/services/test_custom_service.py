"""Saxml's CustomService over real gRPC, with arithmetic methods: `upper` and `reverse`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sax.errors import Internal, InvalidRequest, NotLoaded, QueueFull, SaxError, ShuttingDown
from sax.proto import common_pb2, custom_pb2, lm_pb2, modelet_pb2
from tests.model_server.fake_batched import MEMORY
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, error_of, serving
from tests.model_server.waiting import until

CUSTOM = "/sax/test/custom"


async def ask(served: Served, request: bytes, method: str = "upper", model: str = CUSTOM) -> bytes:
    message = custom_pb2.CustomRequest(model_key=model, request=request, method_name=method)
    return (await served.custom.Custom(message)).response


def asked(served: Served, request: bytes) -> asyncio.Task[bytes]:
    return asyncio.create_task(ask(served, request))


def servable(served: Served) -> Any:
    return served.server.servables.get(CUSTOM)


async def test_bytes_go_to_the_method_that_is_named() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        assert await ask(served, b"ab\xff") == b"AB\xff"
        assert await ask(served, b"ab\xff", "reverse") == b"\xffba"
        assert await ask(served, b"") == b""


async def test_the_cost_of_a_call_comes_behind_the_answer() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        message = custom_pb2.CustomRequest(model_key=CUSTOM, request=b"a", method_name="upper")
        call = served.custom.Custom(message)
        await call
        assert int(dict(await call.trailing_metadata())["query_cost_v0"]) >= 1


async def test_the_message_numbers_are_saxmls() -> None:
    message = custom_pb2.CustomRequest(model_key="m", request=b"r", method_name="n")
    assert message.SerializeToString() == b"\x0a\x01m\x12\x01r\x22\x01n"
    assert custom_pb2.CustomResponse(response=b"r").SerializeToString() == b"\x0a\x01r"
    (service,) = custom_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == "sax.server.custom.CustomService"


async def test_a_method_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        for method in ("lower", ""):  # two methods, none of them `custom`
            error = await error_of(ask(served, b"x", method))
            assert isinstance(error, InvalidRequest)
            assert "is a custom model and does not serve" in str(error)
            assert "it serves upper, reverse" in str(error)
        error = await error_of(ask(served, b"x", model=MODEL))
        assert "is a language model and does not serve upper" in str(error)
        request = lm_pb2.GenerateRequest(model_key=CUSTOM, text="x")
        assert "is a custom model" in str(await error_of(served.lm.Generate(request)))
        assert isinstance(await error_of(ask(served, b"x", model="/sax/test/x")), NotLoaded)


async def test_extra_inputs_are_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        extra = common_pb2.ExtraInputs(strings={"mode": "fast"})
        message = custom_pb2.CustomRequest(
            model_key=CUSTOM, method_name="upper", extra_inputs=extra
        )
        error = await error_of(served.custom.Custom(message))
        assert "Custom takes no extra inputs; leave out mode" in str(error)


async def test_a_request_fails_alone_and_by_its_own_class() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"first")
        await until(lambda: servable(served).running == 1)
        good, bad = asked(served, b"good"), asked(served, b"bad")
        await until(lambda: servable(served).waiting == 2)
        models.batches.set()
        error = await error_of(bad)
        assert (type(error), str(error)) == (InvalidRequest, "bad is not a request")
        assert [await first, await good] == [b"FIRST", b"GOOD"]
        assert list(servable(served).recent_batch_sizes) == [1, 2]
        assert isinstance(await error_of(ask(served, b"bug")), Internal)


async def test_a_full_queue_refuses_and_methods_have_queues_of_their_own() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        tasks = [asked(served, b"x")]
        await until(lambda: servable(served).running == 1)
        tasks += [asked(served, b"x") for _ in range(2)]
        await until(lambda: servable(served).waiting == 2)
        error = await error_of(ask(served, b"x"))
        assert isinstance(error, QueueFull)
        assert error.retry_after_s
        other = asyncio.create_task(ask(served, b"xy", "reverse"))
        await until(lambda: servable(served).running + servable(served).waiting == 4)
        models.batches.set()
        assert await asyncio.gather(*tasks, other) == [b"X", b"X", b"X", b"yx"]


async def test_a_caller_that_goes_away_frees_its_place() -> None:
    models = FakeModels()
    async with serving(models, metrics_port=0) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        gone = served.custom.Custom(
            custom_pb2.CustomRequest(model_key=CUSTOM, request=b"y", method_name="upper")
        )
        await until(lambda: servable(served).waiting == 1)
        gone.cancel()
        await until(lambda: servable(served).waiting == 0)
        models.batches.set()
        await first
        assert await served.metric("sax_requests_cancelled_total", CUSTOM) == 1


async def test_unloading_lets_what_runs_end_and_frees_the_memory() -> None:
    models = FakeModels()
    async with serving(models, drain_seconds=30) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        unload = asyncio.create_task(_unload(served))
        await until(lambda: not _is_loaded(served))
        error = await error_of(ask(served, b"y"))
        assert isinstance(error, SaxError)
        assert not unload.done()
        models.batches.set()
        assert await first == b"X"
        await unload
        assert models.runners[-1].closed
        assert all(info.model_id != CUSTOM for info in served.server.servables.infos())


async def _unload(served: Served) -> None:
    await served.modelet.Unload(modelet_pb2.UnloadRequest(model_key=CUSTOM))


def _is_loaded(served: Served) -> bool:
    try:
        servable(served)
    except NotLoaded:
        return False
    return True


async def test_a_draining_server_answers_what_it_has_and_takes_nothing_new() -> None:
    models = FakeModels()
    async with serving(models, drain_seconds=30) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        stopping = asyncio.create_task(served.server.stop())
        await asyncio.sleep(0)
        assert isinstance(await error_of(ask(served, b"y")), ShuttingDown)
        models.batches.set()
        assert await first == b"X"
        await stopping


async def test_status_and_metrics_count_each_method() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(CUSTOM, "fake.Custom")
        await ask(served, b"x")
        await error_of(ask(served, b"bad"))
        await ask(served, b"x", "reverse")
        request = modelet_pb2.GetStatusRequest(include_method_stats=True)
        status = await served.modelet.GetStatus(request)
        model = next(m for m in status.models if m.model_key == CUSTOM)
        rates = {
            m.method: (m.successes_per_second, m.errors_per_second) for m in model.method_stats
        }
        assert rates == {
            "upper": (pytest.approx(1 / 60), pytest.approx(1 / 60)),
            "reverse": (pytest.approx(1 / 60), 0),
        }
        assert await served.metric("sax_batches_total", CUSTOM) == 3
        assert await served.metric("sax_memory_bytes", CUSTOM) == MEMORY
