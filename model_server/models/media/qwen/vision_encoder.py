"""Image input of Qwen2-VL and its successors: the recipe around a tower, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import Harmless, ignored
from model_server.models.media.image_processor import ImageProcessor, Scales
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.qwen.tower import QwenTower, TowerShape
from model_server.sharing.images.forms import BICUBIC, MultiplesForm
from sax.errors import CheckpointError, InvalidRequest

# Cuts images into patches, in the order in which Qwen's vision towers merge them into vectors.
#
# Patches of one vector lie next to each other: squares of `merge` by `merge` patches in reading
# order, and within each the patches in reading order. The convolution over patches spans two
# frames of a video; an image is both of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchGrid:
    """Prepares the pixels of an image for a tower."""

    patch: int  # pixels of a side
    merge: int  # patches of a side that become one vector
    frames: int  # of a patch
    scales: Scales
    most: int  # patches of an image
    token: str  # text of the token whose places the vectors take
    window: int | None = None  # vectors of a window's side; None: the tower has no windows

    @property
    def numbers(self) -> int:
        """Numbers of a patch."""
        return 3 * self.frames * self.patch**2

    def __call__(self, pixels: np.ndarray) -> PreparedMedia:
        """Cut u8[h, w, 3], whose sides are whole squares. Raises InvalidRequest."""
        height, width = (side // (self.patch * self.merge) for side in pixels.shape[:2])
        rows = height * width
        if rows * self.merge**2 > self.most:
            raise InvalidRequest(
                f"the image becomes {rows * self.merge**2} patches, and this model was loaded for "
                f"{self.most}: send one whose sides differ less"
            )
        return PreparedMedia(
            pieces=self._patches(pixels, height, width),
            places=self._places(height, width),
            grid=(1, height, width),
            rows=rows,
            text=self.token * rows,
        )

    def _patches(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        """f32[p, C]: of each patch the colours, of each colour the frames, rows and columns."""
        shape = (height, self.merge, self.patch, width, self.merge, self.patch, 3)
        cut = self.scales.of(pixels).reshape(shape).transpose(0, 3, 1, 4, 6, 2, 5)
        both = np.repeat(cut[:, :, :, :, :, None], self.frames, axis=5)
        return np.ascontiguousarray(both.reshape(-1, self.numbers), np.float32)

    def _places(self, height: int, width: int) -> np.ndarray:
        """i32[p, 4]: row, column; then height and width, or the order and number of windows."""
        each = np.indices((height * self.merge, width * self.merge))  # [2, rows, columns]
        squares = each.reshape(2, height, self.merge, width, self.merge).transpose(0, 1, 3, 2, 4)
        row, column = squares.reshape(2, -1)
        if self.window is None:
            rest = np.full_like(row, height * self.merge), np.full_like(row, width * self.merge)
        else:
            rest = _windows(height, width, self.window, self.merge**2)
        return np.stack([row, column, *rest], axis=1).astype(np.int32)


def _windows(height: int, width: int, side: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """The patches i[p] one window after the other, and the window i[p] of each of them."""
    rows, columns = np.indices((height, width)).reshape(2, -1) // side
    window = rows * -(-width // side) + columns
    order = np.argsort(window, kind="stable")
    patches = (order[:, None] * each + np.arange(each)).reshape(-1)
    return patches, np.repeat(window[order], each)


# Keys of config.json beside those of the text model.
OUTER = (VISION, PREPROCESSOR, "image_token_id")
# Tokens that a prompt's template writes, and those of videos, which are refused.
TOKENS: Harmless = ignored(
    "video_token_id", "vision_end_token_id", "vision_start_token_id", "vision_token_id"
)
_USUAL_VECTORS = 1280  # of an image at most
_TOKEN_ID, _TOKEN = 151655, "<|image_pad|>"
_LEAST_PATCHES = 1024  # of a batch that is compiled: smaller ones save little
_MOST_PIXELS = 2**31
_LEAST, _MOST = ("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")  # of `size`


# What published checkpoints say of their images, for those without the file.
CLIP: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28},
}
HALVES: Mapping[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
}


def qwen_vision(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    tower: Callable[[ConfigKeys], TowerShape],
    usual: Mapping[str, Any],
    embed: int,
    token: int = _TOKEN_ID,
) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    usual: of preprocessor_config.json. embed: of the language model. token: that vectors replace,
    if the config does not say it. Raises CheckpointError, InvalidRequest.
    """
    if keys.get(VISION) is None:
        return None
    shape = tower(keys)
    if shape.out != embed:
        raise CheckpointError(
            f"vision_config makes vectors of {shape.out} numbers; those of the language model have "
            f"{embed}"
        )
    grid, form = _images(keys, values, shape, usual)
    return MediaRecipe(
        kind="image",
        build=lambda weights: QwenTower(shape, weights),
        form=form,
        prepare=grid,
        placeholder=_TOKEN,
        token=keys.whole("image_token_id", token, least=0),
        piece=grid.numbers,
        columns=4,
        per_row=shape.merge**2,
        width=shape.out * (1 + len(shape.deep)),
        pieces=_sizes(grid.most, shape.merge**2),
        levels=len(shape.deep),
        triples=True,
    )


def _images(
    keys: ConfigKeys, values: Mapping[str, Any], shape: TowerShape, usual: Mapping[str, Any]
) -> tuple[PatchGrid, MultiplesForm]:
    """Return how images are cut and resized. Raises CheckpointError, InvalidRequest."""
    given = {**usual, **_without_nulls(keys.get(PREPROCESSOR, {}))}
    _, frames, patch, _ = shape.patch
    same = {"patch_size": patch, "temporal_patch_size": frames, "merge_size": shape.merge}
    read = ImageProcessor(given, "Qwen2VL", (*same, "min_pixels", "max_pixels", "size"))
    for key, wanted in same.items():
        if read.whole(key, wanted) != wanted:
            raise read.wrong(key, f"vision_config's, {wanted}")
    factor = patch * shape.merge
    least, most = _bounds(read, given)
    most = _most_pixels(values, most, factor**2)
    grid = PatchGrid(
        patch=patch,
        merge=shape.merge,
        frames=frames,
        scales=read.scales(0.5, 0.5),
        most=most // patch**2,
        token=_TOKEN,
        window=shape.window,
    )
    return grid, MultiplesForm(factor, min(least, most), most, read.resample(BICUBIC))


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _bounds(read: ImageProcessor, given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most pixels of an image. Raises CheckpointError."""
    size: Any = given["size"]
    if not isinstance(size, Mapping) or not set(cast("Mapping[str, Any]", size)) <= {
        *_LEAST,
        *_MOST,
    }:
        raise read.wrong("size", "shortest_edge and longest_edge, numbers of pixels")
    found = _without_nulls(cast("Mapping[str, Any]", size))
    least, most = (
        read.whole(
            key, min((found[each] for each in names if each in found), default=0), most=_MOST_PIXELS
        )
        for key, names in (("min_pixels", _LEAST), ("max_pixels", _MOST))
    )
    if least > most:
        raise read.wrong("size", "a shortest_edge of at most its longest_edge")
    return least, most


def _most_pixels(values: Mapping[str, Any], most: int, each: int) -> int:
    """Return the most pixels of an image, whole squares of `each`. Raises InvalidRequest."""
    asked = values.get("IMAGE_PIXELS")
    if asked is not None and (type(asked) is not int or not each <= asked <= most):
        raise InvalidRequest(
            f"IMAGE_PIXELS is {asked!r}: give a whole number from {each}, the pixels of one "
            f"vector, to {most}, the most of the checkpoint",
            param="overrides.IMAGE_PIXELS",
        )
    return max(1, (asked or min(most, _USUAL_VECTORS * each)) // each) * each


def _sizes(most: int, each: int) -> tuple[int, ...]:
    """Patches of batches that are compiled, each at least half of the next one."""
    sizes = [most]
    while sizes[-1] > _LEAST_PATCHES:
        sizes.append(-(-sizes[-1] // (2 * each)) * each)
    return tuple(reversed(sizes))
