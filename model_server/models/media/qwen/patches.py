"""Cuts images into patches, in the order in which Qwen's vision towers merge them into vectors.

Patches of one vector lie next to each other: squares of `merge` by `merge` patches in reading
order, and within each the patches in reading order. The convolution over patches spans two frames
of a video; an image is both of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_server.models.media.image_processor import Scales
from model_server.models.media.media_recipe import PreparedMedia
from sax.errors import InvalidRequest


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
