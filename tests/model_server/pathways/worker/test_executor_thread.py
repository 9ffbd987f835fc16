from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from model_server.pathways.protocol import IfrtResponse
from model_server.pathways.proxy.island import IslandRequest
from model_server.pathways.scheduling.answers import Reply
from model_server.pathways.worker.executor_thread import ExecutorThread
from tests.model_server.pathways import requests
from tests.model_server.pathways.arithmetic import ArithmeticExecutor


class Raising(ArithmeticExecutor):
    def execute(self, session: int, request: Any, *rest: Any) -> None:
        if session == 13:
            raise RuntimeError("a bug")
        super().execute(session, request, *rest)


@pytest.fixture
async def thread() -> AsyncIterator[ExecutorThread]:
    made = ExecutorThread(Raising([0]))
    yield made
    made.close()


async def answered(thread: ExecutorThread, session: int, request: Any) -> Any:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    thread.run(IslandRequest(session, 100, request.SerializeToString(), {}), future.set_result)
    async with asyncio.timeout(60):
        return IfrtResponse.FromString((await future).response)


async def test_answers_carry_the_op_of_their_requests(thread: ExecutorThread) -> None:
    compiled = requests.request("compile", op_id=7)
    answer = await answered(thread, 1, compiled)
    assert answer.response_metadata.op_id == 7
    assert answer.compile_response.loaded_executable_handle == 100


async def test_an_answer_with_an_error_has_no_body(thread: ExecutorThread) -> None:
    """The client takes a request whose answer has one for done, whatever the status says."""
    wrong = requests.request("check_value_ready", op_id=8, value_handles=[5])
    answer = await answered(thread, 1, wrong)
    assert (answer.response_metadata.op_id, answer.response_metadata.status.code) == (8, 5)
    assert answer.WhichOneof("response") is None


async def test_an_executor_that_raises_answers_and_goes_on(thread: ExecutorThread) -> None:
    answer = await answered(thread, 13, requests.request("compile", op_id=9))
    assert answer.response_metadata.op_id == 9
    assert answer.response_metadata.status.message == "RuntimeError: a bug"
    answer = await answered(thread, 1, requests.request("compile"))
    assert answer.response_metadata.status.code == 0


async def test_requests_are_executed_in_their_order(thread: ExecutorThread) -> None:
    answers = [answered(thread, at, requests.request("compile")) for at in range(50)]
    await asyncio.gather(*answers)
    executor = thread.executor
    assert isinstance(executor, ArithmeticExecutor)
    assert sorted(executor.order) == executor.order
