"""Checks the inputs of passes, and asks a model for the answer of each.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from model_server.loading.loaded_batches import ONLY
from model_server.serving.batch_servable import BatchServable
from model_server.serving.query_cost import BatchCost
from model_server.text.sentence_tokenizer import SentenceTokenizer
from model_server.text.text_length import check_bytes, check_pieces
from sax.chat import Image
from sax.errors import InvalidRequest, PromptTooLong
from sax.passes import ChatInput, EmbedInput, PairInput

_EACH = 50  # characters: an input costs some time to begin with
_BATCHES_AHEAD = 2  # queued per caller: keeps the device busy and the queue fair

Item = TypeVar("Item")
T = TypeVar("T")


class ReadsTexts(Protocol):
    """A loaded model that reads whole texts."""

    @property
    def tokenizer(self) -> SentenceTokenizer: ...

    @property
    def max_context(self) -> int:
        """Tokens of one input."""
        ...


async def answers_of(
    passes: BatchServable[Any],
    items: Sequence[Item],
    tokens: Callable[[Item], int],
    then: Callable[[int, Any], T],
    cost: BatchCost | None = None,
) -> list[T]:
    """Return what `then` makes of the place and the answer of each item, in order.

    tokens: of an item. Raises QueueFull, NotLoaded.
    """
    batching = passes.loaded.batching[ONLY]
    room = asyncio.Semaphore(min(_BATCHES_AHEAD * batching.most, batching.queue))

    async def one(place: int, item: Item) -> T:
        async with room:
            answer = await passes.ask(item, cost)
        passes.prompt_tokens += tokens(item)
        return then(place, answer)

    tasks = [asyncio.ensure_future(one(place, item)) for place, item in enumerate(items)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def characters_of(inputs: Sequence[EmbedInput]) -> int:
    """Return how many characters to count for encoding these texts and token ids."""
    texts = (each for each in inputs if not isinstance(each, Image | ChatInput))
    return sum(len(each) + _EACH for each in texts)


def texts_of(inputs: Sequence[PairInput]) -> list[str]:
    """Return the inputs of a model that was found to read texts alone."""
    return [each for each in inputs if isinstance(each, str)]


def check_some(inputs: Sequence[EmbedInput], param: str) -> None:
    if not inputs:
        raise InvalidRequest(f"{param} is empty: send at least one text", param=param)


def check_pairs(first: Sequence[PairInput], second: Sequence[PairInput]) -> None:
    check_some(first, "first")
    check_some(second, "second")
    if len(first) not in (1, len(second)):
        raise InvalidRequest(
            f"first has {len(first)} texts and second has {len(second)}: send one first text, or "
            "as many as there are second ones",
            param="first",
        )


def check_text(text: str, which: str, loaded: ReadsTexts, param: str) -> None:
    if not text:
        raise InvalidRequest(f"{which} is empty: send text", param=param)
    check_bytes(text, loaded.tokenizer, loaded.max_context, param)
    check_pieces(text, loaded.tokenizer.encode, loaded.max_context, param)


def fitting(ids: Sequence[int], which: str, loaded: ReadsTexts, param: str) -> Sequence[int]:
    if len(ids) > loaded.max_context:
        raise PromptTooLong(
            f"{which} has {len(ids)} tokens and this model's maximum context length is "
            f"{loaded.max_context} tokens: send it in shorter parts",
            param=param,
        )
    return ids
