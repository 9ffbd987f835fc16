"""Overrides of models with images or sounds: IMAGES, SOUNDS, MEDIA_ROWS, and IMAGE_PIXELS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.checkpoints.media_part import without_media
from model_server.models.media.media_recipe import CONFIGS, OVERRIDES, MediaRecipe
from model_server.sharing.images.forms import (
    BudgetForm,
    CanvasForm,
    LongestForm,
    MultiplesForm,
    PaddedForm,
)
from sax.errors import InvalidRequest

MEDIA_DEFAULTS: Mapping[str, Any] = {
    # true: refused where images are not taken; false: text only; null: if checkpoint and server can
    "IMAGES": None,
    "SOUNDS": None,  # the same of sounds
    "MEDIA_ROWS": None,  # vectors of images in memory at once; null: the usual ones
    # most pixels of an image, where it keeps its proportions; null: the checkpoint's, within bounds
    "IMAGE_PIXELS": None,
}
_BOUNDED = (BudgetForm, CanvasForm, LongestForm, MultiplesForm, PaddedForm)
_MOST_ROWS = 2**22
_USUAL_ROWS = 4096
_IMAGES = 2  # the largest ones that the buffer holds: one is read while the next is written


def parse_media_rows(values: Mapping[str, Any]) -> int | None:
    """Return MEDIA_ROWS. Raises InvalidRequest."""
    rows = values["MEDIA_ROWS"]
    for key in OVERRIDES.values():
        if values[key] is not None and type(values[key]) is not bool:
            raise InvalidRequest(
                f"{key} is {values[key]!r}: give true, false or null", param=f"overrides.{key}"
            )
    if rows is not None and (type(rows) is not int or not 1 <= rows <= _MOST_ROWS):
        raise InvalidRequest(
            f"MEDIA_ROWS is {rows!r}: give a whole number from 1 to {_MOST_ROWS}, or null",
            param="overrides.MEDIA_ROWS",
        )
    return rows


def wanted_config(
    config: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the config.json that a model is made of: without the encoders that are left out.

    So nothing of such a part is read, or keeps the model from loading.
    """
    parts = ((OVERRIDES[kind], part) for kind, part in CONFIGS.items())
    left_out = [part for key, part in parts if values.get(key) is False]
    return without_media(config, left_out) if config is not None and left_out else config


def rows_in_memory(media: Sequence[MediaRecipe], values: Mapping[str, Any]) -> int | None:
    """Return the vectors of images and sounds that are kept at once; None: it takes none.

    Raises InvalidRequest.
    """
    _check_pixels(media, values)
    _check_taken(media, values)
    if not media:
        _check_text_only(values)
        return None
    largest = max(each.rows for each in media)
    asked, least = values.get("MEDIA_ROWS"), _IMAGES * largest
    if asked is not None and asked < least:
        raise InvalidRequest(
            f"MEDIA_ROWS is {asked}, but the largest image of this model takes {largest} rows "
            f"and {_IMAGES} such images must fit: give at least {least}",
            param="overrides.MEDIA_ROWS",
        )
    return asked or max(least, _USUAL_ROWS)


def _check_pixels(media: Sequence[MediaRecipe], values: Mapping[str, Any]) -> None:
    """Check that IMAGE_PIXELS is not without an effect; those that read it check its value."""
    bounded = any(isinstance(each.form, _BOUNDED) for each in media)
    if values.get("IMAGE_PIXELS") is not None and not bounded:
        raise InvalidRequest(
            "IMAGE_PIXELS bounds images that keep their proportions, and this model takes none: "
            "publish it without IMAGE_PIXELS",
            param="overrides.IMAGE_PIXELS",
        )


def _check_taken(media: Sequence[MediaRecipe], values: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if images or sounds are asked for that the model does not take."""
    for kind, key in OVERRIDES.items():
        if values.get(key) is True and kind not in (each.kind for each in media):
            raise InvalidRequest(
                f"{key} is true, but this model has no encoder of {key.lower()}, or none that is "
                f"supported (docs/reference/models.md lists those with {key.lower()}): publish it "
                f"without {key}",
                param=f"overrides.{key}",
            )


def _check_text_only(values: Mapping[str, Any]) -> None:
    if values.get("MEDIA_ROWS") is not None:
        raise InvalidRequest(
            "MEDIA_ROWS sizes memory for images, which this model does not take: publish it "
            "without MEDIA_ROWS",
            param="overrides.MEDIA_ROWS",
        )
