"""Reads what a checkpoint says of its images: the content of preprocessor_config.json.

A key that is neither read nor known to change nothing ends the load, because an image that is
scaled otherwise than in training is seen wrongly without a word.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np

from model_server.checkpoints.media_part import FILE
from model_server.models.vision.vision_recipe import Colours
from sax.errors import CheckpointError

_MOST_SIZE = 4096  # pixels of a side
_NAMES = ("image_processor_type", "feature_extractor_type")
_ALWAYS = ("do_resize", "do_rescale", "do_normalize")
# How transformers holds and returns images; every image becomes RGB here.
_HARMLESS = frozenset(
    ("auto_map", "data_format", "default_to_square", "device", "disable_grouping")
    + ("do_convert_rgb", "input_data_format", "processor_class", "return_tensors")
)
_REMEDY = "correct the file, or publish the model with IMAGES=false, for text only"


class ImageProcessor:
    """Values of one file. A null counts as absent. Every reader raises CheckpointError."""

    def __init__(
        self,
        given: Mapping[str, Any],
        name: str,
        read: Collection[str],
        off: Collection[str] = (),
        file: str = FILE,
        remedy: str = _REMEDY,
    ) -> None:
        """name: how the type of the processors begins. read: the family's own keys.

        off: switches of the family that are only supported if they are false or absent. file: the
        name of what was read. remedy: ends every error.
        """
        self._file = file
        self._remedy = remedy
        self._given = {key: value for key, value in given.items() if value is not None}
        for key in _NAMES:
            if not str(self._given.get(key, name)).startswith(name):
                raise self.wrong(key, f"the processors of {name}")
        for key in _ALWAYS:
            if self._given.get(key, True) is not True:
                raise self.wrong(key, "true")
        for key in off:
            if self._given.get(key, False) is not False:
                raise self.wrong(key, "false")
        own = {"image_mean", "image_std", "resample", "rescale_factor"}
        known = {*own, *read, *off, *_NAMES, *_ALWAYS, *_HARMLESS}
        if unknown := sorted(set(self._given) - known):
            raise CheckpointError(
                f"{file} has keys that are not supported: {', '.join(unknown)}; if they change "
                f"nothing, remove them: {remedy}"
            )

    def whole(self, key: str, default: int, least: int = 1, most: int = _MOST_SIZE) -> int:
        value = self._given.get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def equal(self, wanted: Mapping[str, int], whose: str) -> None:
        """Check that keys have these values, or are absent."""
        for key, value in wanted.items():
            if self.whole(key, value) != value:
                raise self.wrong(key, f"{whose}, {value}")

    def number(self, key: str, default: float) -> float:
        """Return a number above 0."""
        value = self._given.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._given.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def resample(self, default: int) -> int:
        """Return Pillow's number of a filter."""
        return self.whole("resample", default, 0, 5)

    def square(self, default: int) -> int:
        """Return the pixels of a side of `size`, which has equal ones."""
        return self.side("size", default)

    def side(
        self,
        key: str,
        default: int,
        name: str | None = None,
        names: tuple[str, str] = ("height", "width"),
    ) -> int:
        """Return the pixels of a size with equal height and width, or with only this name.

        names: of height and width.
        """
        size: Any = self._given.get(key, default)
        if isinstance(size, Mapping):
            sides = cast("Mapping[str, Any]", size)
            equal = set(sides) == {*names} and len({*sides.values()}) == 1
            named = name if name is not None and set(sides) == {name} else None
            size = sides[names[0]] if equal else sides[named] if named else None
        if type(size) is not int or not 1 <= size <= _MOST_SIZE:
            other = f"a {name}, or " if name else ""
            raise self.wrong(key, f"{other}equal {names[0]} and {names[1]} from 1 to {_MOST_SIZE}")
        return size

    def scales(self, mean: float, deviation: float) -> Scales:
        """Return how bytes become numbers; mean, deviation: the defaults of all colours."""
        return Scales(*self.colours((mean,) * 3, (deviation,) * 3))

    def colours(self, mean: Sequence[float], deviation: Sequence[float]) -> Colours:
        """Return how bytes become numbers; mean, deviation: the defaults."""
        scale = self._given.get("rescale_factor", 1 / 255)
        if type(scale) not in (int, float):
            raise self.wrong("rescale_factor", "a number")
        divisor = self._colours("image_std", deviation)
        if not all(divisor):
            raise self.wrong("image_std", "numbers other than 0")
        return Colours(float(scale), self._colours("image_mean", mean), divisor)

    def _colours(self, key: str, default: Sequence[float]) -> tuple[float, ...]:
        value = self._given.get(key, [*default])
        numbers = cast("list[Any]", value) if isinstance(value, list) else []
        if len(numbers) != 3 or not all(type(each) in (int, float) for each in numbers):
            raise self.wrong(key, "a number for each of red, green and blue")
        return tuple(map(float, numbers))

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        shown = json.dumps(self._given.get(key))
        return CheckpointError(
            f"{self._file} has {key} = {shown}; supported: {wanted}: {self._remedy}"
        )


class Scales:
    """From bytes of pixels to what the encoder takes: (byte * scale - mean) / deviation."""

    def __init__(self, scale: float, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        self._scale = np.float32(scale)
        self._mean, self._deviation = np.array(mean, np.float32), np.array(deviation, np.float32)

    def of(self, pixels: np.ndarray) -> np.ndarray:
        """Map u8[h, w, 3] to f32[h, w, 3]."""
        return (pixels * self._scale - self._mean) / self._deviation
