"""Puts images and sounds into a rendered chat: their tokens in the text, where those stand, and
what an engine is asked with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
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
    """A part of a medium with the places of its vectors; as of `PreparedMedia`."""

    @property
    def rows(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int, int] | None: ...
    @property
    def frame(self) -> int | None: ...
    @property
    def lasts(self) -> int | None: ...
    @property
    def turns(self) -> np.ndarray | None: ...
    @property
    def twins(self) -> bool: ...


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
    ids: Sequence[int], tokens: Collection[int], media: Sequence[PlacedPart]
) -> list[tuple[int, ...]]:
    """Return the places of each part's tokens among the ids.

    tokens: the ids that stand for vectors. Raises InvalidRequest if there are more or fewer: the
    tokenizer did not read them as they are.
    """
    rows = [part.rows for part in media]
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
    each = [tuple(places[start:end]) for start, end in pairwise(ends)]
    for first, part in enumerate(media):
        if part.turns is not None:
            among = places[ends[first] : ends[first] + len(part.turns)]
            each[first:] = [*_in_turns(among, part.turns), *each[first + 1 + max(part.turns) :]]
    return each


def _in_turns(places: Sequence[int], turns: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Divide the places of parts that take turns among them."""
    for part in range(1 + int(turns.max())):
        yield tuple(np.asarray(places)[turns == part].tolist())


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
    first part says how long it `lasts`; an answer from the largest number of all. The sound of a
    video counts from its first frame on.
    """
    made = np.empty((length, 3), np.int32)
    still = _twins(length, places, media)
    done = start = following = 0
    for each, part in zip(places, media, strict=True):
        inside = _inside(part, len(each))
        if inside is None:
            continue
        if part.frame is None:
            following = _count(made[done : each[0]], still[done : each[0]], following)
            lasts = 1 + int(inside[:, 1:].max()) if part.lasts is None else part.lasts
            start, following = following, following + lasts
        made[list(each)] = start + inside
        done = max(done, each[-1] + 1)
    _count(made[done:], still[done:], following)
    return made, 1 + int(made.max(initial=-1))


def _inside(part: PlacedPart, count: int) -> np.ndarray | None:
    """Return i[count, 3] or i[count, 1]: positions from the medium's own; None: those of a text."""
    if part.grid is not None:
        return np.indices(part.grid).reshape(3, -1).T + (part.frame or 0, 0, 0)
    return None if part.frame is None else np.arange(part.frame, part.frame + count)[:, None]


def _twins(length: int, places: Sequence[Sequence[int]], media: Sequence[PlacedPart]) -> np.ndarray:
    """Return bool[length]: the tokens of a text whose position is that of the token before them."""
    still = np.zeros(length, np.bool_)
    for number, part in enumerate(media):
        if part.twins and part.turns is not None:
            end = max(each[-1] for each in places[number : number + 1 + int(part.turns.max())])
            still[[places[number][0] - 1, *range(end + 2, min(end + 3, length))]] = True
    return still


def _count(made: np.ndarray, still: np.ndarray, start: int) -> int:
    """Give the tokens of a text i32[n, 3] their positions; return the one behind them."""
    made[:] = (start - 1 + np.maximum(np.cumsum(~still), 1))[:, None]
    return int(made[-1, 0]) + 1 if len(made) else start


def with_images(
    asked: EngineRequest, images: tuple[PreparedImage, ...], loaded: Loaded
) -> EngineRequest:
    """Return a request whose prompt has the tokens of these images, with the images themselves.

    Raises InvalidRequest if the prompt has not as many of them.
    """
    assert loaded.images is not None
    recipes = loaded.images.recipes
    tokens = frozenset().union(*(recipe.tokens for recipe in recipes))
    places = places_of(asked.prompt, tokens, images)
    spans = tuple(
        MediaSpan(
            image.digest, runs_of(each), image.count, image.pieces, image.places, image.encoder
        )
        for image, each in sorted(zip(images, places, strict=True), key=lambda pair: pair[1])
    )
    if not any(recipe.triples for recipe in recipes):
        return replace(asked, media=spans)
    length = len(asked.prompt)
    positions, following = triples_of(length, places, images)
    told = positions.astype("<i4").tobytes()
    return replace(asked, media=spans, positions=told, shift=following - length)
