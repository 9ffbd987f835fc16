"""Overrides of models with image input: IMAGES, MEDIA_ROWS of their vectors, and IMAGE_PIXELS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.media_part import without_media
from model_server.models.media.media_recipe import MediaRecipe
from model_server.sharing.images.forms import LongestForm, MultiplesForm
from sax.errors import InvalidRequest

MEDIA_DEFAULTS: Mapping[str, Any] = {
    # true: refused where images are not taken; false: text only; null: if checkpoint and server can
    "IMAGES": None,
    "MEDIA_ROWS": None,  # vectors of images in memory at once; null: the usual ones
    # most pixels of an image, where it keeps its proportions; null: the checkpoint's, within bounds
    "IMAGE_PIXELS": None,
}
_MOST_ROWS = 2**22
_USUAL_ROWS = 4096
_IMAGES = 2  # the largest ones that the buffer holds: one is read while the next is written


def parse_media_rows(values: Mapping[str, Any]) -> int | None:
    """Return MEDIA_ROWS. Raises InvalidRequest."""
    rows, images = values["MEDIA_ROWS"], values["IMAGES"]
    if images is not None and type(images) is not bool:
        raise InvalidRequest(
            f"IMAGES is {images!r}: give true, false or null", param="overrides.IMAGES"
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
    """Return the config.json that a model is made of: without a vision encoder if IMAGES is false.

    So nothing of that part is read, or keeps the model from loading.
    """
    if config is None or values.get("IMAGES") is not False:
        return config
    return without_media(config)


def rows_in_memory(media: MediaRecipe | None, values: Mapping[str, Any]) -> int | None:
    """Return the vectors of images that are kept at once; None: it takes none.

    Raises InvalidRequest.
    """
    _check_pixels(media, values)
    if media is None:
        _check_text_only(values)
        return None
    asked, least = values.get("MEDIA_ROWS"), _IMAGES * media.rows
    if asked is not None and asked < least:
        raise InvalidRequest(
            f"MEDIA_ROWS is {asked}, but the largest image of this model takes {media.rows} rows "
            f"and {_IMAGES} such images must fit: give at least {least}",
            param="overrides.MEDIA_ROWS",
        )
    return asked or max(least, _USUAL_ROWS)


def _check_pixels(media: MediaRecipe | None, values: Mapping[str, Any]) -> None:
    """Check that IMAGE_PIXELS is not without an effect; those that read it check its value."""
    bounded = media is not None and isinstance(media.form, MultiplesForm | LongestForm)
    if values.get("IMAGE_PIXELS") is not None and not bounded:
        raise InvalidRequest(
            "IMAGE_PIXELS bounds images that keep their proportions, and this model takes none: "
            "publish it without IMAGE_PIXELS",
            param="overrides.IMAGE_PIXELS",
        )


def _check_text_only(values: Mapping[str, Any]) -> None:
    if values.get("IMAGES") is True:
        raise InvalidRequest(
            "IMAGES is true, but this model has no vision encoder, or none that is supported "
            "(docs/models.md lists those with images): publish it without IMAGES",
            param="overrides.IMAGES",
        )
    if values.get("MEDIA_ROWS") is not None:
        raise InvalidRequest(
            "MEDIA_ROWS sizes memory for images, which this model does not take: publish it "
            "without MEDIA_ROWS",
            param="overrides.MEDIA_ROWS",
        )
