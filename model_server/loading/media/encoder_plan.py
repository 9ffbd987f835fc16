"""Sizes of the encoder beside a language model, and the memory that it takes on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_server.engine.media.media_limits import MediaLimits
from model_server.models.media.tower_attention import QUERIES
from model_server.models.recipe import Recipe
from model_server.models.weights.weight import Blueprint
from sax.errors import InvalidRequest, MemoryPlanError
from sax.format import human_bytes as human

_FLOAT = 4  # bytes
_ALIVE = 6  # arrays as wide as the widest layer that a batch needs at once
_HEADS, _COPIES = 16, 3  # of an encoder's scores: more heads than most have


def media_limits(recipe: Recipe) -> MediaLimits | None:
    """Return the sizes of a model's encoder and its buffer; None: it takes text alone."""
    media, rows = recipe.media, recipe.media_rows
    if media is None or rows is None:
        return None
    return MediaLimits(
        rows=rows,
        pieces=media.pieces,
        piece=media.piece,
        columns=media.columns,
        per_row=media.per_row,
        width=media.width,
        levels=media.levels,
        bidirectional=media.bidirectional,
        triples=media.triples,
    )


def check_chunk(limits: MediaLimits | None, most: int) -> None:
    """Raise InvalidRequest if an image whose tokens see each other is longer than a chunk.

    most: prompt tokens of a step.
    """
    if limits is not None and limits.bidirectional and limits.largest > most:
        raise InvalidRequest(
            f"an image of this model has up to {limits.largest} tokens, which see each other and "
            f"so are computed in one step, and a step here takes at most {most}: publish with "
            "IMAGES=false, for text only",
            param="overrides.IMAGES",
        )


def encoder_workspace(limits: MediaLimits, encoder: Blueprint) -> int:
    """Return the bytes of the buffer and of the largest batch's temporaries, on every device."""
    buffer = _FLOAT * limits.rows * limits.width
    widest = max(max(each.shape) for each in encoder.declarations if len(each.shape) == 2)
    return buffer + max(_batch(limits, widest, *batch) for batch in limits.batches)


def _batch(limits: MediaLimits, widest: int, images: int, pieces: int) -> int:
    numbers = limits.piece + limits.columns + _ALIVE * widest
    scores = _COPIES * _HEADS * min(QUERIES, pieces) * pieces
    return _FLOAT * images * (pieces * numbers + scores)


@contextmanager
def share_of_media(recipe: Recipe, weights: int, workspace: int) -> Iterator[None]:
    """Say of a MemoryPlanError how much of the memory is for images or sounds.

    weights, workspace: bytes of the encoder on a device; 0: it lies elsewhere.
    """
    try:
        yield
    except MemoryPlanError as exc:
        media, rows = recipe.media, recipe.media_rows
        if media is None or rows is None or not weights:
            raise
        text = (
            f"{exc.text}. Of that, weights of {human(weights)} and a workspace of "
            f"{human(workspace)} are for {media.many}: publish with {media.override}=false to "
            f"serve text only, or lower MEDIA_ROWS from {rows} to no less than {2 * media.rows}"
        )
        raise MemoryPlanError(text, param=exc.param, need=exc.need) from exc


def told_media(recipe: Recipe, weights: int) -> str:
    """Describe a model's encoder for the log; weights: its bytes on a device."""
    media, rows = recipe.media, recipe.media_rows
    if media is None or rows is None:
        return ""
    return (
        f" {media.many} of up to {media.rows} tokens {media.counted}, an encoder of "
        f"{human(weights)} and memory for {rows} of its vectors"
    )
