"""Id lists: token ids written as text, "5,6,7", for Saxml's classes with tokenized input."""

from __future__ import annotations

from collections.abc import Iterable

from sax.errors import InvalidRequest, PromptTooLong

_DIGITS = 10  # of the largest id that a message can hold


def parse_ids(text: str, most: int, param: str) -> tuple[int, ...]:
    """Return the ids of a list of up to `most`; none for an empty text.

    Raises InvalidRequest naming the field, PromptTooLong.
    """
    if not text.strip():
        return ()
    count = text.count(",") + 1
    if count > most:
        raise PromptTooLong(
            f"{param} has {count} token ids and this model's maximum context length is "
            f"{most} tokens: send fewer",
            param=param,
        )
    return tuple(_id(part, place, param) for place, part in enumerate(text.split(","), 1))


def join_ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _id(part: str, place: int, param: str) -> int:
    digits = part.strip()
    if len(digits) > _DIGITS or not (digits.isascii() and digits.isdecimal()):
        raise InvalidRequest(
            f"{param} is not a list of token ids: number {place} is {digits[:20]!r}. This model "
            'takes ids separated by commas, such as "5,6,7", as its Saxml class does; for text, '
            "publish it with TOKENIZED_INPUT=false",
            param=param,
        )
    return int(digits)
