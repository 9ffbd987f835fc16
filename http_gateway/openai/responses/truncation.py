"""`truncation: auto`: drops the oldest turns of a conversation that does not fit the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sax.chat import Message
from sax.errors import PromptTooLong

DROPPED_HEADER = "x-sax-dropped-messages"
_SHARE = 8  # of the context, kept for the answer of a conversation that is cut

Measure = Callable[[tuple[Message, ...]], Awaitable[tuple[int, int]]]


async def fitted(
    messages: tuple[Message, ...], measure: Measure, most_tokens: int | None
) -> tuple[Message, ...]:
    """Return the conversation, or its instructions and the newest turns that fit the context.

    measure: returns the tokens of messages, and those of the context. most_tokens: of the answer;
    None: any. The last turn stays, even where it fits nowhere: the model refuses it.
    """
    if await _fits(messages, measure, 1):
        return messages
    head, turns = divided(messages)
    fewest, most = 1, len(turns)  # turns that are dropped; the last one stays
    while fewest < most:
        middle = (fewest + most) // 2
        if await _fits(_kept(head, turns[middle:]), measure, most_tokens):
            most = middle
        else:
            fewest = middle + 1
    return _kept(head, turns[min(fewest, len(turns) - 1) :])


async def _fits(messages: tuple[Message, ...], measure: Measure, most_tokens: int | None) -> bool:
    try:
        tokens, context = await measure(messages)
    except PromptTooLong:
        return False
    room = min(most_tokens or context // _SHARE, context // 2)
    return tokens + max(room, 1) <= context


def divided(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Return the system's messages at the beginning, and the turns after them.

    Results of calls are of the turn of their calls: neither is dropped without the other.
    """
    begin = next((n for n, each in enumerate(messages) if each.role != "system"), len(messages))
    turns: list[list[Message]] = []
    for message in messages[begin:]:
        if message.role == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return [*messages[:begin]], turns


def _kept(head: Sequence[Message], turns: Sequence[Sequence[Message]]) -> tuple[Message, ...]:
    return (*head, *(message for turn in turns for message in turn))
