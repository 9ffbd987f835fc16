"""Images as Pixtral's tower takes them, and the text that stands for one in a prompt.

An image keeps its proportions. Its vectors are written row by row, with a token at the end of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from flax import nnx

from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.pixels import Shades, patches_of, places_of, shades_of
from model_server.models.media.pixtral.tower import PixtralConfig
from model_server.models.media.vision_keys import CLIP_DEVIATION, CLIP_MEAN
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BICUBIC, LongestForm
from sax.errors import InvalidRequest

_SOFT, _BREAK, _END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
# The processor takes the size of patches, and how many it merges, from what it prepares them for.
_READ = ("patch_size", "size", "spatial_merge_size")
_UNUSED = ("crop_size", "do_pad", "pad_size")  # it pads images of a batch to one size
_MOST_PIECES = 2**16


def pixtral_recipe(
    tower: PixtralConfig,
    merged: int,
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    build: Callable[[WeightForm], nnx.Module],
    embed: int,
    token: int,
) -> MediaRecipe:
    """Return a recipe over Pixtral's tower.

    merged: patches of a row or a column that become one vector. given: preprocessor_config.
    values: overrides. build: the tower and what projects its vectors. embed, token: of the
    language model. Raises CheckpointError, InvalidRequest.
    """
    read = ImageProcessor(given, "Pixtral", (*_READ, *_UNUSED), off=("do_center_crop",))
    factor, longest = tower.patch * merged, read.side("size", tower.image, "longest_edge")
    form = LongestForm(factor, _longest(values, longest, factor), read.resample(BICUBIC))
    shades = shades_of(read.colours(CLIP_MEAN, CLIP_DEVIATION))
    most = (-(-form.longest // form.factor) * merged) ** 2
    if most > _MOST_PIECES:
        raise read.wrong("size", f"images of at most {_MOST_PIECES} patches, not {most}")
    return MediaRecipe(
        kind="image",
        build=build,
        form=form,
        prepare=partial(prepared, shades, tower.patch, merged),
        placeholder=_SOFT,
        token=token,
        piece=3 * tower.patch**2,
        columns=2,
        per_row=merged**2,
        width=embed,
        pieces=doubling(most, merged**2),
    )


def _longest(values: Mapping[str, Any], own: int, factor: int) -> int:
    """Return the most pixels of a side, `own` without IMAGE_PIXELS. Raises InvalidRequest."""
    asked = values.get("IMAGE_PIXELS")
    if asked is None:
        return own
    if type(asked) is not int or not factor**2 <= asked <= own**2:
        raise InvalidRequest(
            f"IMAGE_PIXELS is {asked!r}: give a whole number from {factor**2}, the pixels of one "
            f"vector, to {own**2}, the most of the checkpoint",
            param="overrides.IMAGE_PIXELS",
        )
    return math.isqrt(asked)


def prepared(shades: Shades, patch: int, merged: int, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3], whose sides are whole vectors."""
    high, wide = (side // (patch * merged) for side in pixels.shape[:2])
    return PreparedMedia(
        pieces=patches_of(pixels, shades, patch, merged),
        places=places_of(high * merged, wide * merged, merged),
        grid=(1, high, wide),
        rows=high * wide,
        text=_BREAK.join([_SOFT * wide] * high) + _END,
    )
