"""Images for the arithmetic runner: each piece is a vector, and its number stands for a token."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from model_server.engine.limits import EngineLimits
from model_server.engine.media import EncoderLimits, MediaLimits, MediaSpan
from model_server.engine.request import EngineRequest
from tests.model_server.engine.fake_runner import GREEDY, next_token

IMAGE = 90  # the id that a tokenizer writes in the place of each vector
ENCODER = EncoderLimits(kind="image", pieces=(4, 8), piece=1, columns=1, per_row=1)
MEDIA = MediaLimits(rows=16, width=1, encoders=(ENCODER,))


def limits(media: MediaLimits = MEDIA, **changes: Any) -> EngineLimits:
    sizes: dict[str, Any] = {
        "slots": 4,
        "pages": 64,
        "page_size": 4,
        "max_context": 64,
        "token_budget": 4 + 16,
        "max_logit_rows": 4,
        "prefill_block": 4,
    }
    return EngineLimits(**(sizes | {"media": media} | changes))


def image(values: Sequence[int], *runs: tuple[int, int], encoder: int = 0) -> MediaSpan:
    """An image whose vectors stand for these tokens. encoder: number of the one that takes it."""
    pieces = np.asarray(values, "<f4").tobytes()
    return MediaSpan(
        digest=blake2b(pieces, digest_size=16, salt=bytes([encoder])).digest(),
        runs=runs,
        count=len(values),
        pieces=pieces,
        places=np.zeros(len(values), "<i4").tobytes(),
        encoder=encoder,
    )


def request(*parts: Sequence[int] | list[int], max_tokens: int = 3, **more: Any) -> EngineRequest:
    """Texts are tuples of tokens, images lists of the tokens that they stand for."""
    prompt: list[int] = []
    media: list[MediaSpan] = []
    for part in parts:
        if isinstance(part, list):
            media.append(image(part, (len(prompt), len(prompt) + len(part))))
            prompt += [IMAGE] * len(part)
        else:
            prompt += part
    fields: dict[str, Any] = {
        "sampling": GREEDY,
        "stop_ids": frozenset(),
        "max_tokens": max_tokens,
        "media": tuple(media),
    }
    return EngineRequest(prompt=tuple(prompt), **(fields | more))


def seen(asked: EngineRequest) -> list[int]:
    """The tokens of a prompt, as the model sees them."""
    tokens = list(asked.prompt)
    for span in asked.media:
        values = np.frombuffer(span.pieces, "<f4").astype(int).tolist()
        for first, end in span.runs:
            tokens[first:end] = values[: end - first]
            del values[: end - first]
    return tokens


def answer(asked: EngineRequest) -> list[int]:
    """The greedy answer of the whole model."""
    tokens = [*seen(asked), *asked.answer]
    for _ in range(asked.max_tokens - len(asked.answer)):
        tokens.append(next_token(tokens, asked.sampling))
    return tokens[len(asked.prompt) :]
