"""Sizes of the encoders beside a language model, and the memory that they take on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from model_server.engine.media import BatchShape, EncoderLimits, MediaLimits
from model_server.models.media.media_recipe import MediaRecipe, names_of, text_only
from model_server.models.media.tower_layer import QUERIES
from model_server.models.recipe import Recipe
from model_server.models.weights.low_rank import AdapterRoom
from model_server.models.weights.weight import Blueprint
from sax.errors import InvalidRequest, MemoryPlanError
from sax.format import human_bytes as human

_FLOAT = 4  # bytes
_ALIVE = 6  # arrays as wide as the widest layer that a batch needs at once
_HEADS, _COPIES = 16, 3  # of an encoder's scores: more heads than most have


def media_limits(recipe: Recipe) -> MediaLimits | None:
    """Return the sizes of a model's encoders and their buffer; None: it takes text alone."""
    media, rows = recipe.media, recipe.media_rows
    return None if not media or rows is None else limits_of(media, rows, recipe.adapters)


def limits_of(
    media: Sequence[MediaRecipe], rows: int, room: AdapterRoom | None = None
) -> MediaLimits:
    """Return the sizes of encoders whose vectors go to a buffer of so many rows.

    room: of the adapters, some of which may be the checkpoint's own for one of these kinds.
    """
    return MediaLimits(
        rows=rows,
        width=max(each.width for each in media),
        encoders=tuple(_encoder_limits(each, room) for each in media),
        levels=max(each.levels for each in media),
        triples=any(each.triples for each in media),
    )


def _encoder_limits(media: MediaRecipe, room: AdapterRoom | None) -> EncoderLimits:
    return EncoderLimits(
        kind=media.kind,
        pieces=media.pieces,
        piece=media.piece,
        columns=media.columns,
        per_row=media.per_row,
        bidirectional=media.bidirectional,
        least=media.least,
        together=media.together,
        adapter=0 if room is None else room.place_of(media.kind),
    )


def check_chunk(limits: MediaLimits | None, most: int) -> None:
    """Raise InvalidRequest if an image whose tokens see each other is longer than a chunk.

    most: prompt tokens of a step.
    """
    if limits is not None and limits.joined > most:
        raise InvalidRequest(
            f"an image of this model has up to {limits.joined} tokens, which see each other and "
            f"so are computed in one step, and a step here takes at most {most}: publish with "
            "IMAGES=false, for text only, or a lower IMAGE_PIXELS where that bounds images",
            param="overrides.IMAGES",
        )


def longest_prompt(recipe: Recipe, limits: MediaLimits | None, most: int) -> int:
    """Return the tokens of the longest prompt whose tokens all see each other; 0: they do not.

    most: prompt tokens of a step. Raises InvalidRequest if an image leaves no room for a text.
    """
    if recipe.bidirectional_prompt is None:
        return 0
    longest = min(recipe.bidirectional_prompt, most)
    if limits is not None and limits.largest >= longest:
        raise InvalidRequest(
            f"an image of this model has {limits.largest} tokens, all tokens of a prompt see each "
            f"other and so are computed in one step, and a prompt here has at most {longest}: "
            "publish with IMAGES=false, for text only, or take a checkpoint with smaller images",
            param="overrides.IMAGES",
        )
    return longest


def encoder_workspace(limits: MediaLimits, encoder: Blueprint) -> int:
    """Return the bytes of the buffer and of the largest batch's temporaries, on every device.

    encoder: `Encoders`.
    """
    buffer = _FLOAT * limits.rows * limits.width
    widest = max(max(each.shape) for each in encoder.declarations if len(each.shape) == 2)
    return buffer + max(_batch(limits, widest, batch) for batch in limits.batches)


def _batch(limits: MediaLimits, widest: int, batch: BatchShape) -> int:
    encoder, pieces = limits.encoders[batch.encoder], batch.size
    numbers = encoder.piece + encoder.columns + _ALIVE * widest
    scores = _COPIES * _HEADS * min(QUERIES, pieces) * pieces
    return _FLOAT * batch.images * (pieces * numbers + scores)


@contextmanager
def share_of_media(recipe: Recipe, weights: int, workspace: int) -> Iterator[None]:
    """Say of a MemoryPlanError how much of the memory is for images or sounds.

    weights, workspace: bytes of the encoder on a device; 0: it lies elsewhere.
    """
    try:
        yield
    except MemoryPlanError as exc:
        media, rows = recipe.media, recipe.media_rows
        if not media or rows is None or not weights:
            raise
        least = 2 * max(each.rows for each in media)
        text = (
            f"{exc.text}. Of that, weights of {human(weights)} and a workspace of "
            f"{human(workspace)} are for {names_of(media)}: publish with {text_only(media)} to "
            f"serve text only, or lower MEDIA_ROWS from {rows} to no less than {least}"
        )
        raise MemoryPlanError(text, param=exc.param, need=exc.need) from exc


def told_media(recipe: Recipe, weights: int) -> str:
    """Describe a model's encoders for the log; weights: their bytes on a device."""
    media, rows = recipe.media, recipe.media_rows
    if not media or rows is None:
        return ""
    told = " and ".join(f"{each.many} of up to {each.rows} tokens {each.counted}" for each in media)
    have = "an encoder" if len(media) == 1 else f"{len(media)} encoders"
    whose = "its" if len(media) == 1 else "their"
    return f" {told}, {have} of {human(weights)} and memory for {rows} of {whose} vectors"
