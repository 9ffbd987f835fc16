"""Batches with the openai client, through a gateway that is killed while it runs one."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.end_to_end.cell import GATEWAY, READY_S, SMOLLM2, Cell

CHATS = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def sdk(served: Cell) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=5) as client:
        yield client


def line(n: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say {n}."}]
    body = {"model": SMOLLM2, "messages": messages, "temperature": 0, "max_tokens": 12, **fields}
    return {"custom_id": f"line {n}", "method": "POST", "url": CHATS, "body": body}


def start(sdk: openai.OpenAI, lines: list[dict[str, Any]]) -> Any:
    data = "\n".join(map(json.dumps, lines)).encode()
    file = sdk.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    assert sdk.files.content(file.id).read() == data
    return sdk.batches.create(
        input_file_id=file.id, endpoint=CHATS, completion_window="24h", metadata={"a": "b"}
    )


def until(sdk: openai.OpenAI, id: str, *statuses: str, answered: int = 0) -> Any:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        batch = sdk.batches.retrieve(id)
        if batch.status in (*statuses, *ENDED) or (
            answered and batch.request_counts and batch.request_counts.completed >= answered
        ):
            return batch
        time.sleep(0.2)
    raise AssertionError(f"the batch does not get on: {sdk.batches.retrieve(id)}")


def lines_in(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(each) for each in sdk.files.content(file_id or "").text.splitlines()]


def test_a_batch_outlives_the_gateway_that_runs_it(served: Cell, sdk: openai.OpenAI) -> None:
    count = 70  # the count of answered lines is kept every 3 s
    lines = [line(n, max_tokens=24, ignore_eos=True) for n in range(count)]
    batch = start(sdk, lines)
    running = until(sdk, batch.id, answered=8)
    assert running.status == "in_progress", "killed too late: send more lines"
    served.kill(GATEWAY)
    served.start(GATEWAY)
    served.wait_until_up()
    known = sdk.batches.retrieve(batch.id)
    assert known.request_counts is not None
    assert known.request_counts.completed >= running.request_counts.completed
    done = until(sdk, batch.id)
    assert done.status == "completed"
    assert done.error_file_id is None
    assert (done.request_counts.total, done.request_counts.completed) == (count, count)
    answers = lines_in(sdk, done.output_file_id)
    assert sorted(each["custom_id"] for each in answers) == sorted(
        f"line {n}" for n in range(count)
    )
    ours = {"ignore_eos": lines[7]["body"].pop("ignore_eos")}
    alone = sdk.chat.completions.create(**lines[7]["body"], extra_body=ours)
    (seventh,) = [each for each in answers if each["custom_id"] == "line 7"]
    message = seventh["response"]["body"]["choices"][0]["message"]
    assert message["content"] == alone.choices[0].message.content


def test_bad_lines_are_errors_of_their_own(sdk: openai.OpenAI) -> None:
    done = until(sdk, start(sdk, [line(1), line(2, nope=1)]).id)
    assert done.status == "completed"
    (error,) = lines_in(sdk, done.error_file_id)
    assert error["custom_id"] == "line 2"
    assert error["response"]["body"]["error"]["param"] == "nope"
    assert done.id in [each.id for each in sdk.batches.list(limit=5)]


def test_a_batch_can_be_cancelled(sdk: openai.OpenAI) -> None:
    batch = start(sdk, [line(n, max_tokens=200) for n in range(200)])
    until(sdk, batch.id, "in_progress")
    assert sdk.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = until(sdk, batch.id)
    assert done.status == "cancelled"
    assert done.request_counts.completed + done.request_counts.failed == 200
    codes = {(each["error"] or {}).get("code") for each in lines_in(sdk, done.error_file_id)}
    assert codes == {"batch_cancelled"}


def test_a_file_is_deleted(sdk: openai.OpenAI) -> None:
    file = sdk.files.create(
        file=("x.jsonl", b"{}"),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600
    assert file.id in [each.id for each in sdk.files.list(purpose="batch")]
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(file.id)
