"""Puts images and sounds into a rendered chat: their tokens in the text, where those stand, and
what an engine is asked with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from model_server.engine.engine import EngineRequest
from model_server.engine.media import MediaSpan
from model_server.loading.images.prepared import PreparedImage
from model_server.loading.loaded import Loaded
from model_server.text.control_tokens import MARK
from sax.errors import InvalidRequest


class PlacedPart(Protocol):
    """Where the vectors of a part of a medium lie; as of `PreparedMedia`."""

    @property
    def grid(self) -> tuple[int, int, int] | None: ...
    @property
    def frame(self) -> int | None: ...
    @property
    def lasts(self) -> int | None: ...


def expanded(rendered: str, texts: Sequence[tuple[str, str]]) -> str:
    """Return a rendered chat with placeholders replaced.

    texts: for each image, sound or video, in order, what a template writes in its place and what
    stands there instead. What users wrote is marked by `ControlTokens.guard` and is no placeholder.
    Raises InvalidRequest if the template did not write one for each.
    """
    kinds = {placeholder for placeholder, _ in texts}
    pieces = re.split(f"({MARK}.|{'|'.join(map(re.escape, kinds))})", rendered, flags=re.DOTALL)
    found = [n for n, piece in enumerate(pieces) if piece in kinds]
    if [pieces[n] for n in found] != [placeholder for placeholder, _ in texts]:
        raise InvalidRequest(
            f"the messages have {len(texts)} images, sounds or videos and the model's chat "
            f"template writes {len(found)} of them, or others: send them in messages of the role "
            "user",
            param="messages",
        )
    for n, (_, text) in zip(found, texts, strict=True):
        pieces[n] = text
    return "".join(pieces)


def places_of(
    ids: Sequence[int], tokens: Collection[int], rows: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the places of each image's tokens among the ids, given how many tokens each has.

    tokens: the ids that stand for vectors. Raises InvalidRequest if there are more or fewer: the
    tokenizer did not read them as they are.
    """
    places = [place for place, each in enumerate(ids) if each in tokens]
    if len(places) != sum(rows):
        raise InvalidRequest(
            f"the images, sounds or videos stand for {sum(rows)} tokens and the prompt has "
            f"{len(places)} of them: the tokenizer of this model does not fit them",
            param="messages",
        )
    ends = [0]
    for count in rows:
        ends.append(ends[-1] + count)
    return [tuple(places[start:end]) for start, end in pairwise(ends)]


def runs_of(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending places as runs: the first place of each, and the one behind its last."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = runs[-1][0], place + 1
        else:
            runs.append((place, place + 1))
    return tuple(runs)


def triples_of(
    length: int,
    places: Sequence[Sequence[int]],
    media: Sequence[PlacedPart],
) -> tuple[np.ndarray, int]:
    """Return i32[length, 3]: of each token of a prompt its frame, row and column; and the number
    that follows all of them.

    Three times the same number for a text's token, and for those of what has no grid; those of an
    image lie in its grid, those of a video in that of its first frame. A text counts on from the
    longer side of what is before it, as in transformers, however many frames that has, unless the
    first part says how long it `lasts`; an answer from the largest number of all.
    """
    made = np.empty((length, 3), np.int32)
    done = start = following = 0
    for each, part in zip(places, media, strict=True):
        if part.grid is None:
            continue
        made[done : each[0]] = _counted(each[0] - done, following)
        following += each[0] - done
        if part.frame is None:
            lasts = max(part.grid[1:]) if part.lasts is None else part.lasts
            start, following = following, following + lasts
        inside = np.indices(part.grid).reshape(3, -1).T + (part.frame or 0, 0, 0)
        made[each[0] : each[-1] + 1] = start + inside
        done = each[-1] + 1
    made[done:] = _counted(length - done, following)
    return made, 1 + int(made.max(initial=-1))


def _counted(count: int, start: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)[:, None]


def with_images(
    asked: EngineRequest, images: tuple[PreparedImage, ...], loaded: Loaded
) -> EngineRequest:
    """Return a request whose prompt has the tokens of these images, with the images themselves.

    Raises InvalidRequest if the prompt has not as many of them.
    """
    assert loaded.images is not None
    recipes = loaded.images.recipes
    tokens = frozenset().union(*(recipe.tokens for recipe in recipes))
    places = places_of(asked.prompt, tokens, [image.rows for image in images])
    spans = tuple(
        MediaSpan(
            image.digest, runs_of(each), image.count, image.pieces, image.places, image.encoder
        )
        for image, each in zip(images, places, strict=True)
    )
    if not any(recipe.triples for recipe in recipes):
        return replace(asked, media=spans)
    length = len(asked.prompt)
    positions, following = triples_of(length, places, images)
    told = positions.astype("<i4").tobytes()
    return replace(asked, media=spans, positions=told, shift=following - length)
