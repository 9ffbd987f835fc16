"""Log-probabilities as OpenAI and vLLM write them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from http_gateway.openai.reply_schema import Shape
from sax.types import TokenLogprob

# JSON has no infinity; OpenAI and vLLM write this for an impossible token.
LEAST_LOGPROB = -9999.0
_PLAIN = Shape()


def chat_logprobs(entries: Sequence[TokenLogprob], shape: Shape = _PLAIN) -> dict[str, object]:
    content = [
        {
            **_chat_logprob(entry, shape),
            "top_logprobs": [_chat_logprob(rival, shape) for rival in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_logprob(entry: TokenLogprob, shape: Shape) -> dict[str, object]:
    return {
        "token": shape.name(entry),
        "logprob": _finite(entry.logprob),
        "bytes": list(entry.token_bytes),
    }


def completion_logprobs(
    entries: Sequence[TokenLogprob], shape: Shape = _PLAIN
) -> dict[str, object]:
    """Return four parallel lists; offsets count characters from the start of the choice's text."""
    return {
        "tokens": [shape.name(entry) for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_rivals(entry, shape) for entry in entries],
        "text_offset": [entry.text_offset for entry in entries],
    }


def shown_logprobs(
    prompt: Iterable[TokenLogprob], answer: Iterable[TokenLogprob], shape: Shape
) -> list[TokenLogprob]:
    """Return the entries of a completion: the prompt's first if they are echoed."""
    if shape.echoed_tops is None:
        return [*answer]
    return [*(cut(entry, shape.echoed_tops) for entry in prompt), *answer]


def prompt_logprobs(entries: Iterable[TokenLogprob], shape: Shape) -> list[object]:
    """Return vLLM's list: null for the first token, then token id -> what is known of it."""
    tops = shape.prompt_logprobs or 0
    return [
        None if math.isnan(entry.logprob) else _prompt_logprob(cut(entry, tops), shape)
        for entry in entries
    ]


def cut(entry: TokenLogprob, tops: int) -> TokenLogprob:
    """Return the entry with so many alternatives at most."""
    if len(entry.top) <= tops:
        return entry
    return msgspec.structs.replace(entry, top=entry.top[:tops])


def _prompt_logprob(entry: TokenLogprob, shape: Shape) -> dict[str, object]:
    return {
        str(each.token_id): {
            "logprob": _finite(each.logprob),
            "rank": each.rank,
            "decoded_token": shape.name(each),
        }
        for each in (entry, *entry.top)
    }


def _rivals(entry: TokenLogprob, shape: Shape) -> dict[str, float | None] | None:
    """Top tokens plus the chosen one; where texts are equal the likelier one is kept."""
    if math.isnan(entry.logprob):
        return None
    rivals: dict[str, float | None] = {}
    for rival in (*entry.top, entry):
        rivals.setdefault(shape.name(rival), _finite(rival.logprob))
    return rivals


def _finite(logprob: float) -> float | None:
    """Return None for the first token of a prompt, which follows nothing."""
    return None if math.isnan(logprob) else max(logprob, LEAST_LOGPROB)
