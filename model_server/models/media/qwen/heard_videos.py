"""Videos whose sound track is heard: the tokens of sights and sounds take turns, by their time.

Qwen2.5-Omni writes chunk after chunk, of each first what is seen; Qwen3-Omni writes each pair of
frames before the sounds that follow it. Both count time in positions: a token of a sound is one.

Source: `replace_video_with_audio_token` of transformers' `Qwen2_5OmniProcessor` and
`Qwen3OmniMoeProcessor`, and `get_rope_index` of their models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia


class TurnsOfTwo(NamedTuple):
    """Whose turn it is at each token of a video with its sound."""

    heard: np.ndarray  # bool[n]
    last: int  # tokens of the last piece, behind which positions go on


# From i[S] and i[T], ascending positions of the tokens of what is seen and of what is heard.
TakeTurns = Callable[[np.ndarray, np.ndarray], TurnsOfTwo]


def in_chunks(each: int) -> TakeTurns:
    """Return how chunks of so many positions follow each other."""

    def turns(seen: np.ndarray, heard: np.ndarray) -> TurnsOfTwo:
        pairs = zip_longest(_chunks(seen, each), _chunks(heard, each), fillvalue=0)
        pieces = [piece for a, b in pairs for piece in ((False, a), (True, b)) if piece[1]]
        kinds = np.repeat([kind for kind, _ in pieces], [count for _, count in pieces])
        return TurnsOfTwo(kinds, pieces[-1][1])

    return turns


def _chunks(times: np.ndarray, each: int) -> list[int]:
    """Return the tokens of each chunk.

    As in transformers, a token that is several chunks later than the one before it begins a chunk
    of its own, as do those after it until the chunks have come up to it.
    """
    starts, due = [0], each
    for place, time in enumerate(times.tolist()):
        if time >= due:
            starts.append(place)
            due += each
    return np.diff([*starts, len(times)]).tolist()


def by_time(seen: np.ndarray, heard: np.ndarray) -> TurnsOfTwo:
    """Order tokens by their positions, of the same one those of what is seen first."""
    kinds = np.argsort(np.concatenate([seen, heard]), kind="stable") >= len(seen)
    return TurnsOfTwo(kinds, len(kinds) - 1 - int(np.flatnonzero(kinds != kinds[-1])[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weaver:
    """Puts a video and its sound together."""

    turns: TakeTurns
    marks: tuple[str, str]  # texts before and behind the tokens of both
    twins: bool  # as of PreparedMedia

    def __call__(self, video: PreparedMedia, sound: PreparedMedia) -> PreparedMedia:
        seen, heard = video.parts, sound.parts
        counts = [part.rows for part in (*seen, *heard)]
        owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        split = sum(counts[: len(seen)])
        times = np.repeat([part.frame or 0 for part in seen], counts[: len(seen)])
        kinds, last = self.turns(times, np.arange(len(owners) - split))
        order = np.empty(len(owners), np.int32)
        order[~kinds], order[kinds] = owners[:split], owners[split:]
        tokens = (_token(seen[0]), _token(heard[0]))
        starts = np.cumsum([0, *counts[len(seen) :]])
        lasts = len(owners) - split if kinds[-1] else 1 + int(_furthest(seen, times)[-last:].max())
        return video._replace(
            text="".join(tokens[kind] for kind in kinds.tolist()).join(self.marks),
            lasts=lasts,
            turns=order,
            twins=self.twins,
            after=(
                *(part._replace(text="", after=()) for part in seen[1:]),
                *(
                    part._replace(text="", kind="audio", frame=int(start), after=())
                    for part, start in zip(heard, starts, strict=False)
                ),
            ),
        )


def _token(part: PreparedMedia) -> str:
    """Return the text of one of its equal tokens."""
    return part.text[: len(part.text) // part.rows]


def _furthest(seen: tuple[PreparedMedia, ...], times: np.ndarray) -> np.ndarray:
    """Return the largest of the three positions of each token of what is seen."""
    sides = [np.indices(part.grid).reshape(3, -1)[1:].max(0) for part in seen if part.grid]
    return np.maximum(times, np.concatenate(sides))


def with_sounds(
    vision: MediaRecipe | None, sounds: MediaRecipe | None, weaver: Weaver
) -> MediaRecipe | None:
    """Return a vision encoder whose videos are heard by an encoder of sounds, if there is one."""
    if vision is None or vision.video is None or sounds is None:
        return vision
    return replace(vision, video=replace(vision.video, woven=weaver))
