"""Puts images into a rendered chat: their tokens in the text, and where those stand. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from model_server.text.control_tokens import MARK
from sax.errors import InvalidRequest


def expanded(rendered: str, placeholder: str, texts: Sequence[str]) -> str:
    """Return a rendered chat with the i-th placeholder replaced by the i-th text.

    What users wrote is marked by `ControlTokens.guard` and is no placeholder. Raises InvalidRequest
    if the template did not write one for each image.
    """
    pieces = re.split(f"({MARK}.|{re.escape(placeholder)})", rendered, flags=re.DOTALL)
    found = [n for n, piece in enumerate(pieces) if piece == placeholder]
    if len(found) != len(texts):
        raise InvalidRequest(
            f"the messages have {len(texts)} images or sounds and the model's chat template writes "
            f"{len(found)} of them: send them in messages of the role user",
            param="messages",
        )
    for n, text in zip(found, texts, strict=True):
        pieces[n] = text
    return "".join(pieces)


def places_of(ids: Sequence[int], token: int, rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the places of each image's tokens among the ids, given how many tokens each has.

    Raises InvalidRequest if there are more or fewer: the tokenizer did not read them as they are.
    """
    places = [place for place, each in enumerate(ids) if each == token]
    if len(places) != sum(rows):
        raise InvalidRequest(
            f"the images or sounds stand for {sum(rows)} tokens and the prompt has {len(places)} "
            "of them: the tokenizer of this model does not fit them",
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
