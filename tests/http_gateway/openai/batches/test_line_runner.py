"""A line of a batch: asked as its route would be, and again where waiting helps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from fastapi import Request
from starlette.responses import Response

from http_gateway.access import RequestRecord
from http_gateway.catalog import Catalog
from http_gateway.openai.batches.input_lines import BatchLine
from http_gateway.openai.batches.line_runner import LineRunner, LineSlots
from http_gateway.openai.batches.records import BatchOrder, LineResult
from sax.auth.authentication import NO_AUTHENTICATION
from sax.auth.credentials import presented_account
from sax.errors import ModelNotReady, QueueFull, SaxError
from tests.http_gateway.fake_cell import FakeCell, published
from tests.virtual_loop import now, run

CHAT = "/v1/chat/completions"
ORDER = BatchOrder(
    id="batch_12",
    owner="everyone",
    key="",
    endpoint=CHAT,
    input_file_id="file-1",
    completion_window="24h",
    created_at=0,
    expires_at=1,
)
LINE = BatchLine(3, "mine", {"model": "smollm2", "x": [1, "é"]})


class Route:
    """Answers with these, in order; errors are raised."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = [*answers]
        self.bodies: list[Any] = []
        self.records: list[RequestRecord] = []
        self.accounts: list[str] = []

    async def __call__(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        self.records.append(RequestRecord.current())
        self.accounts.append(presented_account())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Response(b'{"a": 1}', answer)


async def asked(
    route: Route, line: BatchLine = LINE, order: BatchOrder = ORDER
) -> tuple[LineResult, Sequence[float]]:
    """The result, and the pauses before it."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    catalog = Catalog(FakeCell(published()))
    runner = LineRunner({order.endpoint: route}, catalog, NO_AUTHENTICATION, sleep)
    return await runner.run(order, line, runner.begin(order)), pauses


async def test_an_answer_is_a_line_of_the_output():
    route = Route(200)
    result, pauses = await asked(route)
    assert (result.line, result.good, pauses) == (3, True, [])
    (record,) = route.records
    assert json.loads(result.text) == {
        "id": "batch_req_12_3",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": record.request_id, "body": {"a": 1}},
        "error": None,
    }
    assert route.bodies == [{**LINE.body, "priority": 1000}]
    assert route.accounts == ["batches of everyone"]


async def test_an_embedding_has_no_priority():
    order = msgspec.structs.replace(ORDER, endpoint="/v1/embeddings")
    route = Route(200)
    await asked(route, order=order)
    assert route.bodies == [LINE.body]


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (QueueFull("full", retry_after_s=7), [7, 7, 7]),
        (ModelNotReady("not yet"), [1, 2, 4]),
        (ModelNotReady("not yet", retry_after_s=600), [60, 60, 60]),
    ],
)
async def test_a_line_waits_while_nothing_can_take_it(error: SaxError, pauses: list[float]):
    result, waited = await asked(Route(error, error, error, 200))
    assert result.good
    assert waited == pauses


async def test_a_fault_of_ours_is_tried_three_times():
    result, waited = await asked(Route(ValueError("x"), ValueError("x"), ValueError("x")))
    assert (result.good, waited) == (False, [2, 4])
    told = json.loads(result.text)["response"]
    assert told["status_code"] == 500
    assert "see the gateway's log" in told["body"]["error"]["message"]


async def test_a_model_that_is_not_there_is_an_error_at_once():
    result, waited = await asked(Route(), BatchLine(1, "a", {"model": "nothing"}))
    assert (result.good, waited) == (False, [])
    assert json.loads(result.text)["response"]["status_code"] == 404


class People:
    waiting = False

    def __call__(self) -> bool:
        return self.waiting


async def taken(slots: LineSlots, count: int) -> list[asyncio.Task[None]]:
    """So many lines that would run, after a while."""
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(count)]
    await asyncio.sleep(5)
    return tasks


def done(tasks: list[asyncio.Task[None]]) -> int:
    return sum(task.done() for task in tasks)


def test_no_more_lines_run_than_may():
    async def story() -> None:
        slots = LineSlots(3, People())
        tasks = await taken(slots, 5)
        assert done(tasks) == 3
        began_s = now()
        slots.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (done(tasks), now()) == (4, began_s)
        slots.release()
        await asyncio.gather(*tasks)

    run(story())


def test_one_line_at_a_time_runs_while_people_wait():
    async def story() -> None:
        people = People()
        people.waiting = True
        slots = LineSlots(3, people)
        tasks = await taken(slots, 5)
        assert done(tasks) == 1
        slots.release()
        await asyncio.sleep(5)
        assert done(tasks) == 2
        people.waiting = False
        await asyncio.sleep(5)
        assert done(tasks) == 4
        slots.release()
        await asyncio.gather(*tasks)

    run(story())


def test_lines_that_run_already_are_left_alone():
    async def story() -> None:
        people = People()
        slots = LineSlots(3, people)
        tasks = await taken(slots, 4)
        people.waiting = True
        slots.release()
        slots.release()
        await asyncio.sleep(5)
        assert done(tasks) == 3  # one of the first three runs still
        slots.release()
        await asyncio.gather(*tasks)

    run(story())
