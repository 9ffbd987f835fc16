"""Puts images into a rendered chat: their tokens in the text, and where those stand. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from model_server.text.control_tokens import MARK
from sax.errors import InvalidRequest


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
    grids: Sequence[tuple[tuple[int, int, int], int | None]],
) -> tuple[np.ndarray, int]:
    """Return i32[length, 3]: of each token of a prompt its frame, row and column; and the number
    that follows all of them.

    grids: frames, rows and columns of each image, and of a video's frames but the first how many
    frames later they are. Three times the same number for a text's token; those of an image lie in
    its grid, those of a video in that of its first frame. A text counts on from the longer side of
    what is before it, as in transformers, however many frames that has; an answer from the largest
    number of all.
    """
    made = np.empty((length, 3), np.int32)
    done = start = following = 0
    for each, (grid, frame) in zip(places, grids, strict=True):
        made[done : each[0]] = _counted(each[0] - done, following)
        following += each[0] - done
        if frame is None:
            start, following = following, following + max(grid[1:])
        inside = np.indices(grid).reshape(3, -1).T + (frame or 0, 0, 0)
        made[each[0] : each[-1] + 1] = start + inside
        done = each[-1] + 1
    made[done:] = _counted(length - done, following)
    return made, 1 + int(made.max(initial=-1))


def _counted(count: int, start: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)[:, None]
