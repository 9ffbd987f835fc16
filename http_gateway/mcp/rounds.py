"""An answer in rounds: between them the gateway calls MCP servers for the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, cast

from http_gateway.mcp.calls import McpCalls
from sax.chat import ToolChoice
from sax.errors import DeadlineExceeded
from sax.mcp.session import McpOutcome
from sax.types import GenerateRequest, Message, TokenChunk

MOST_ROUNDS = 16

Made = dict[str, McpOutcome]  # by the ids of the calls
Ask = Callable[[GenerateRequest, Callable[[TokenChunk], None]], Awaitable[None]]
Sink = Callable[[TokenChunk | Made], None]


class WaitingCall(NamedTuple):
    server: str  # its label
    name: str
    arguments: str  # JSON


class CallingAnswer(Protocol):
    """An answer that reads chunks, and what calls gave."""

    @property
    def completion_tokens(self) -> int: ...

    @property
    def waiting(self) -> Mapping[str, WaitingCall]:
        """The calls that wait to be made, by their ids."""
        ...

    @property
    def goes_on(self) -> bool:
        """True if the model answers again once its calls are made."""
        ...

    def end_round(self) -> tuple[Message, ...]:
        """Return what the model said in this round, and what its calls gave."""
        ...

    def conclude(self, reason: str) -> None:
        """End an answer that does not go on after its calls. reason: of the end, as of a chunk."""
        ...


async def run_rounds(
    request: GenerateRequest,
    answer: CallingAnswer,
    ask: Ask,
    calls: McpCalls,
    limit_s: float,
    sink: Sink,
) -> None:
    """Read an answer to its end, and make its calls. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(limit_s):
            await _run(request, answer, ask, calls, sink)
    except TimeoutError as exc:
        raise DeadlineExceeded(
            f"the answer and its calls took longer than {limit_s:g} s: allow more time, or offer "
            "fewer tools"
        ) from exc


async def _run(
    request: GenerateRequest, answer: CallingAnswer, ask: Ask, calls: McpCalls, sink: Sink
) -> None:
    most_tokens, last = request.sampling.max_tokens, False
    for number in range(MOST_ROUNDS):
        await ask(request, sink)
        waiting = answer.waiting
        if not waiting:
            return
        for id, call in waiting.items():
            sink({id: await calls.call(*call)})
        goes_on, said = answer.goes_on, answer.end_round()
        left = None if most_tokens is None else most_tokens - answer.completion_tokens
        if last or not goes_on:
            break
        if left is not None and left <= 0:
            return answer.conclude("length")
        last = calls.full or number == MOST_ROUNDS - 2
        request = _continued(request, said, left, calls=not last)
    answer.conclude("stop")


def _continued(
    request: GenerateRequest, said: tuple[Message, ...], left: int | None, *, calls: bool
) -> GenerateRequest:
    """Return the request that goes on after what was said. left: tokens. calls: there may be
    more."""
    choice = ToolChoice.AUTO if calls else ToolChoice.NONE
    return replace(
        request,
        prompt=(*cast("tuple[Message, ...]", request.prompt), *said),
        sampling=replace(request.sampling, max_tokens=left),
        chat=replace(
            request.chat,
            tool_choice=choice,
            tool_name="",
            add_generation_prompt=True,
            continue_final_message=False,
        ),
        request_id=f"{request.request_id}+",
    )
