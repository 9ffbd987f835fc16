"""Conversations are cut at their oldest turns, calls together with their results."""

from __future__ import annotations

from http_gateway.openai.responses.truncation import divided, fitted
from sax.chat import Message, ToolCall
from sax.errors import PromptTooLong

SYSTEM = Message("system", "s" * 10)
CALL = Message("assistant", "c" * 10, tool_calls=(ToolCall("1", "f"), ToolCall("2", "f")))
RESULTS = (Message("tool", "r" * 10), Message("tool", "r" * 10))
LAST = Message("user", "l" * 10)
CONTEXT = 100


async def measure(messages: tuple[Message, ...]) -> tuple[int, int]:
    size = sum(each.characters for each in messages)
    if size > 10 * CONTEXT:
        raise PromptTooLong("too long")
    return size, CONTEXT


async def test_what_fits_stays_whole():
    messages = (SYSTEM, LAST, Message("assistant", "a" * 79))
    assert await fitted(messages, measure, 50) == messages


async def test_the_oldest_turns_are_dropped_and_the_answer_has_room():
    turns = [Message("user", f"{n:010}") for n in range(300)]
    kept = await fitted((SYSTEM, *turns, LAST), measure, None)
    assert kept == (SYSTEM, *turns[-6:], LAST)  # 80 tokens, and an eighth of the context
    kept = await fitted((SYSTEM, *turns, LAST), measure, 30)
    assert kept == (SYSTEM, *turns[-5:], LAST)


async def test_results_go_with_their_calls():
    begin = Message("user", "u" * 55)
    assert divided((SYSTEM, begin, CALL, *RESULTS, LAST)) == (
        [SYSTEM],
        [[begin], [CALL, *RESULTS], [LAST]],
    )
    assert await fitted((SYSTEM, begin, CALL, *RESULTS, LAST), measure, 1) == (
        (SYSTEM, CALL, *RESULTS, LAST)
    )
    assert await fitted((SYSTEM, begin, CALL, *RESULTS, LAST), measure, 50) == (
        (SYSTEM, CALL, *RESULTS, LAST)
    )
    long = Message("user", "l" * 60)
    assert await fitted((SYSTEM, CALL, *RESULTS, long), measure, 1) == (SYSTEM, long)


async def test_a_last_turn_that_fits_nowhere_stays_and_is_refused_by_the_model():
    long = Message("user", "l" * 5000)
    assert await fitted((SYSTEM, LAST, long), measure, 1) == (SYSTEM, long)
