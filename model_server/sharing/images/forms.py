"""Forms of images: sizes in pixels that a model takes, and ways to bring an image to one.

A form is tagged, so that a process told of one by a message knows which it is. Each says by itself
how large an image becomes; the decoding process resizes and cuts accordingly (see `images`).
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import NamedTuple

import msgspec

_QWEN_SIDES = 200  # the longer side in shorter ones, beyond which transformers refuses an image
_CUT_SIDES = 100  # beyond it, an image that is cut to a square would grow without need
_LEAST_SCALE, _MOST_SCALE = 1e-5, 100.0  # of the search of PatchesForm
BILINEAR = 2  # Pillow's number
BICUBIC = 3


class ImageFit(NamedTuple):
    """Sizes by which an image is brought to a form: resized, then cut to a box."""

    resized: tuple[int, int]  # width and height
    box: tuple[int, int, int, int]  # left, top, right, bottom; what is outside the image is black
    below: tuple[int, int] | None = None  # width and height of the whole image, a second time

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the result."""
        left, top, right, bottom = self.box
        wide, high = self.below or (0, 0)
        return max(right - left, wide), bottom - top + high


class SquareForm(msgspec.Struct, frozen=True, array_like=True, tag="square"):
    """Every image is resized, then cut to a square."""

    size: int  # pixels of a side of the square
    shortest: int | None  # pixels of the shorter side before the cut; None: squeezed to the square
    resample: int  # Pillow's number of a filter: 0 nearest, 2 bilinear, 3 bicubic, ...

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None if self.shortest is None else _CUT_SIDES

    def fit(self, width: int, height: int) -> ImageFit:
        resized = self._resized(width, height)
        left, top = ((side - self.size) // 2 for side in resized)
        return ImageFit(resized, (left, top, left + self.size, top + self.size))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.shortest is None:
            return self.size, self.size
        if width <= height:
            return self.shortest, self.shortest * height // width
        return self.shortest * width // height, self.shortest


class MultiplesForm(msgspec.Struct, frozen=True, array_like=True, tag="multiples"):
    """Each side becomes a multiple of `factor`; the number of pixels stays between two bounds.

    The rounding is that of transformers' processors of Qwen2-VL and its successors.
    """

    factor: int
    least: int  # pixels of an image
    most: int
    resample: int = BICUBIC

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return _QWEN_SIDES

    def fit(self, width: int, height: int) -> ImageFit:
        resized = self._resized(width, height)
        return ImageFit(resized, (0, 0, *resized))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        factor = self.factor
        wide, high = round(width / factor), round(height / factor)
        if wide * high * factor**2 > self.most:
            by = math.sqrt(height * width / self.most)
            wide, high = (max(1, math.floor(side / by / factor)) for side in (width, height))
        elif wide * high * factor**2 < self.least:
            by = math.sqrt(self.least / (height * width))
            wide, high = (math.ceil(side * by / factor) for side in (width, height))
        return wide * factor, high * factor


class LongestForm(msgspec.Struct, frozen=True, array_like=True, tag="longest"):
    """No side is longer than a bound, and each becomes a multiple of `factor`, rounded upwards.

    The rounding is that of transformers' PixtralImageProcessor.
    """

    factor: int
    longest: int  # pixels of a side, before it is rounded
    resample: int = BICUBIC

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        by = max(height / self.longest, width / self.longest, 1)
        # No side of an image that is long and thin is rounded to nothing.
        sides = (max(1, math.floor(side / by)) for side in (width, height))
        wide, high = (math.ceil(side / self.factor) * self.factor for side in sides)
        return ImageFit((wide, high), (0, 0, wide, high))


class BudgetForm(msgspec.Struct, frozen=True, array_like=True, tag="budget"):
    """An image fills as many squares of `factor` as it may in its own proportions.

    The rounding is that of transformers' Gemma4ImageProcessor.
    """

    factor: int
    most: int  # squares
    resample: int = BICUBIC

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        by = math.sqrt(self.most * self.factor**2 / (width * height))
        wide, high = (math.floor(by * side / self.factor) for side in (width, height))
        if not wide or not high:
            long, short = max(width, height), min(width, height)
            row = min(long // short, self.most), 1
            wide, high = row if not high else reversed(row)
        size = wide * self.factor, high * self.factor
        return ImageFit(size, (0, 0, *size))


class PatchesForm(msgspec.Struct, frozen=True, array_like=True, tag="patches"):
    """An image fills at most so many squares of `factor`, each side rounded upwards.

    The search for the scale is that of transformers' Siglip2ImageProcessor.
    """

    factor: int
    most: int  # squares
    resample: int = BILINEAR

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        least, most = _LEAST_SCALE / 10, _MOST_SCALE
        while most - least >= _LEAST_SCALE:
            middle = (least + most) / 2
            if math.prod(self._squares(width, height, middle)) <= self.most:
                least = middle
            else:
                most = middle
        wide, high = (self.factor * count for count in self._squares(width, height, least))
        return ImageFit((wide, high), (0, 0, wide, high))

    def _squares(self, width: int, height: int, scale: float) -> tuple[int, int]:
        wide, high = (math.ceil(side * scale / self.factor) for side in (width, height))
        return max(1, wide), max(1, high)


class PaddedForm(msgspec.Struct, frozen=True, array_like=True, tag="padded"):
    """No image grows; each side becomes a multiple of `factor` by black at the right and below.

    The rounding is that of transformers' Kimi_K25ImageProcessor.
    """

    patch: int  # pixels of a side
    factor: int
    most: int  # patches of an image, before it is padded
    longest: int  # patches of a side
    resample: int = BICUBIC

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        count = max(1, height // self.patch) * max(1, width // self.patch)
        longest = self.longest * self.patch
        scale = min(1.0, math.sqrt(self.most / count), longest / height, longest / width)
        resized = tuple(min(max(1, int(side * scale)), longest) for side in (width, height))
        wide, high = (-(-side // self.factor) * self.factor for side in resized)
        return ImageFit((resized[0], resized[1]), (0, 0, wide, high))


class CanvasForm(msgspec.Struct, frozen=True, array_like=True, tag="canvas"):
    """An image lies on a black canvas whose sides are multiples of `factor`; it grows only to fill
    the smallest ones.

    The rounding is that of transformers' Glm5NextImageProcessor; frames of a video share bounds.
    """

    factor: int
    least: int  # vectors of an image
    most: int
    temporal: int = 2  # frames of a vector
    resample: int = BICUBIC

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int, frames: int | None = None) -> ImageFit:
        """frames: of a video; None: of an image, as many as a vector has."""
        count, each = frames or self.temporal, self.temporal * self.factor**2
        wide, high = self._canvas(width, height, count)
        scale = min(high / height, wide / width)
        if count * height * width >= each * self.least:
            scale = min(1.0, scale)
        sides = ((width, wide), (height, high))
        resized = tuple(max(1, min(most, math.floor(side * scale))) for side, most in sides)
        return ImageFit((resized[0], resized[1]), (0, 0, wide, high))

    def _canvas(self, width: int, height: int, frames: int) -> tuple[int, int]:
        even = max(self.temporal, round(frames / self.temporal) * self.temporal)
        each = self.temporal * self.factor**2
        wide, high = self._up(width), self._up(height)
        if even * wide * high < self.least * each:
            scale = math.sqrt(self.least * each / (frames * height * width))
            wide, high = (self._up(max(1, math.ceil(side * scale))) for side in (width, height))
        if even * wide * high > self.most * each:
            return self._within(width, height, even)
        return wide, high

    def _within(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Return the largest canvas of these proportions within the bounds."""
        most = self.most * self.temporal * self.factor**2
        low, upper, best = 1, height, (self.factor, self.factor)
        while low <= upper:
            middle = (low + upper) // 2
            sides = self._up(max(1, math.floor(width * middle / height))), self._up(middle)
            if frames * math.prod(sides) <= most:
                best, low = sides, middle + 1
            else:
                upper = middle - 1
        return best

    def _up(self, side: int) -> int:
        return math.ceil(side / self.factor) * self.factor


class CropsForm(msgspec.Struct, frozen=True, array_like=True, tag="crops"):
    """An image fills one side of a grid of square crops; the rest of the grid is not made.

    The grid and the rounding are those of transformers' Phi4MultimodalImageProcessor.
    """

    crop: int  # pixels of a side
    most: int  # crops of a grid
    resample: int = BILINEAR

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        wide, high = math.ceil(width / self.crop), math.ceil(height / self.crop)
        if wide * high > self.most:
            wide, high = self._nearest(width, height)
        by_width, by_height = wide * self.crop / width, high * self.crop / height
        if by_width < by_height:
            size = wide * self.crop, max(1, int(height * by_width))
        else:
            size = max(1, int(width * by_height)), high * self.crop
        return ImageFit(size, (0, 0, *size))

    def _nearest(self, width: int, height: int) -> tuple[int, int]:
        """Return the grid whose sides are as those of the image; of equal ones by its size."""
        best, least = (1, 1), math.inf
        for grid in sorted(grids(self.most), key=math.prod):
            away = abs(width / height - grid[0] / grid[1])
            area = 0.5 * self.crop**2 * math.prod(grid)
            if away < least or (away == least and width * height > area):
                best, least = grid, away
        return best


class TilesForm(msgspec.Struct, frozen=True, array_like=True, tag="tiles"):
    """An image fills most of a grid of square tiles; below more than one it is there once more.

    The grid and the rounding are those of transformers' Llama4ImageProcessor.
    """

    tile: int  # pixels of a side
    most: int  # tiles of a grid
    enlarged: bool = False  # to the largest grid that it fills, however small it is
    resample: int = BILINEAR

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> ImageFit:
        wide, high = self._grid(width, height)
        bounds = self._bound(width, wide), self._bound(height, high)
        single = (wide, high) == (self.tile, self.tile)
        below = None if single else (self.tile, self.tile)
        return ImageFit(_within((width, height), bounds), (0, 0, wide, high), below)

    def _bound(self, own: int, grid: int) -> _Bound:
        """Return the pixels that a side may have; small images are not made much larger."""
        most = grid if self.enlarged else max(own, self.tile)
        return _Bound(min(most, grid), is_grid=self.enlarged or grid < most)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the grid that fits best, in pixels."""
        sizes = [(wide * self.tile, high * self.tile) for wide, high in grids(self.most)]
        scales = [min(_single(w / width), _single(h / height)) for w, h in sizes]
        larger = [scale for scale in scales if scale >= 1]
        best = (max if self.enlarged or not larger else min)(larger or scales)
        fitting = [size for size, scale in zip(sizes, scales, strict=True) if scale == best]
        return min(fitting, key=math.prod)


class WindowsFit(NamedTuple):
    """Sizes by which an image becomes windows, one below the other, and last the whole of it."""

    square: int | None  # pixels of a side that black is added to first; None: it is as it is
    whole: tuple[int, int]  # width and height of the whole, before it is squeezed
    cut: tuple[int, int]  # of what is cut into windows
    window: int  # pixels of a side of a window, before it is resized; 0: there are none
    grid: tuple[int, int]  # columns and rows of windows
    size: tuple[int, int]  # width and height of the result


class WindowsForm(msgspec.Struct, frozen=True, array_like=True, tag="windows"):
    """Windows over an image, each resized to a square, and behind them the image, squeezed to one.

    The windows and the rounding are those of transformers' Step3p7ImageProcessor.
    """

    whole: int  # pixels of a side of the square that the image becomes
    tile: int  # of those that windows become
    longest: int  # pixels of a side of an image, above which it is made smaller
    resample: int = BILINEAR

    @property
    def sides(self) -> int | None:
        """The longer side in shorter ones, at most; None: any."""
        return None

    def fit(self, width: int, height: int) -> WindowsFit:
        square = None
        if min(width, height) < 32 and max(width, height) > 4 * min(width, height):
            square = width = height = max(width, height)
        if (long := max(width, height)) > self.longest:
            scale = self.longest / long
            width, height = int(width * scale), int(height * scale)
        window = self._window(min(width, height), max(width, height))
        if not window:
            size = (self._wider, self.whole)
            return WindowsFit(square, (width, height), (width, height), 0, (0, 0), size)
        wide, high = self._snapped(width, window), self._snapped(height, window)
        columns, rows = max(1, wide // window), max(1, high // window)
        # Windows lie below each other; the width tells how many of them form a row.
        size = (self._wider + columns, columns * rows * self.tile + self.whole)
        return WindowsFit(square, (width, height), (wide, high), window, (columns, rows), size)

    def grid_of(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of windows of a result of this size."""
        columns, windows = width - self._wider, (height - self.whole) // self.tile
        return columns, windows // max(1, columns)

    @property
    def _wider(self) -> int:
        return max(self.tile, self.whole)

    def _window(self, short: int, long: int) -> int:
        if long <= self.whole:
            return short if long / short > 1.5 else 0
        return min(short, self.tile) if long / short > 4 else self.tile

    def _snapped(self, side: int, window: int) -> int:
        if side < window:
            return side
        return window * (side // window + (side % window > 0.2 * window))


@cache
def grids(most: int) -> tuple[tuple[int, int], ...]:
    """Return columns and rows of each grid of at most so many tiles, by proportion."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for rows in (n for n in range(1, tiles + 1) if tiles % n == 0):
            by_ratio.setdefault(rows / (tiles // rows), []).append((tiles // rows, rows))
    return tuple(grid for alike in by_ratio.values() for grid in alike)


class _Bound(NamedTuple):
    pixels: int
    is_grid: bool  # then the reference computes with it in float32


def _within(size: tuple[int, int], bounds: tuple[_Bound, _Bound]) -> tuple[int, int]:
    """Return the largest width and height of an image of `size` within the bounds."""
    (width, height), (wide, high) = size, bounds
    by_width, by_height = _scale(wide, width), _scale(high, height)
    if _single(by_width) < _single(by_height) or (
        not (wide.is_grid or high.is_grid) and by_width < by_height
    ):
        return wide.pixels, _scaled(height, by_width, wide, high)
    return _scaled(width, by_height, high, wide), high.pixels


def _scale(bound: _Bound, own: int) -> float:
    return _single(bound.pixels / own) if bound.is_grid else bound.pixels / own


def _scaled(side: int, by: float, of: _Bound, most: _Bound) -> int:
    made = _single(side * by) if of.is_grid else side * by
    return max(1, min(math.floor(made), most.pixels))


def _single(number: float) -> float:
    """Round to float32, in which the reference compares scales."""
    return ctypes.c_float(number).value


ImageForm = (
    SquareForm
    | MultiplesForm
    | LongestForm
    | BudgetForm
    | PatchesForm
    | PaddedForm
    | CanvasForm
    | CropsForm
    | TilesForm
    | WindowsForm
)
