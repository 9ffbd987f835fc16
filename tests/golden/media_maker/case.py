"""One shrunken random model with image input, whose vectors and logits are stored.

Knows no transformers and no torch; what a case needs of them it imports when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform

Shapes = dict[str, tuple[int, ...]]


class Seen(NamedTuple):
    """Images as the reference model takes them, and the prompt around them."""

    prompt: list[int]
    inputs: Mapping[str, Any]  # further arguments of the model, tensors
    pieces: Sequence[np.ndarray]  # of each image, what the processor makes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaCase:
    """A config.json and a preprocessor_config.json as published checkpoints have them."""

    name: str  # of the folder
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    images: tuple[tuple[int, int], ...] = ()  # height and width of each
    sounds: tuple[int, ...] = ()  # samples of each
    see: Callable[[MediaCase, Sequence[np.ndarray]], Seen]  # images u8[h, w, 3], sounds f32[n]
    vectors: Callable[[Any, Seen], Sequence[Any]]  # the model's vectors of each image, [rows, W]
    # What transformers calls a tensor -> what published checkpoints call it.
    published: Callable[[str], str] = lambda name: name
    # Tensors as transformers saves them -> as published checkpoints hold the same numbers.
    stored: Callable[[Shapes], Shapes] = lambda shapes: shapes
    # Feature -> changes to the config that switch it off: the logits must change.
    without: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def pictures(self) -> list[np.ndarray]:
        """The images, u8[h, w, 3] each."""
        return [
            image_of(f"image {number} of {self.name}", *size)
            for number, size in enumerate(self.images)
        ]

    def noises(self) -> list[np.ndarray]:
        """The sounds at 16 kHz, f32[n] each."""
        return [
            sound_of(f"sound {number} of {self.name}", size)
            for number, size in enumerate(self.sounds)
        ]

    def words(self, part: int, count: int) -> list[int]:
        """Tokens of a text between images, none of the first and of the last ten."""
        span = self.config.get("text_config", self.config)["vocab_size"] - 13
        drawn = uniform(f"part {part} of {self.name}", count)
        return [3 + int(each * span) for each in drawn]


def image_of(name: str, height: int, width: int) -> np.ndarray:
    """u8[h, w, 3]: colours that change slowly, with some noise."""
    parts = uniform(name, 6 + height * width * 3)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(a * 9 * x / width + b * 9 * y / height) for a, b in parts[:6].reshape(3, 2)]
    noise = parts[6:].reshape(height, width, 3)
    return (np.stack(waves, -1) * 90 + 100 + noise * 60).astype(np.uint8)


def sound_of(name: str, samples: int) -> np.ndarray:
    """f32[n]: two notes over a little noise, in steps that a file of 16 bits can hold."""
    parts = uniform(name, 4 + samples)
    seconds = np.arange(samples) / 16_000
    notes = np.zeros(samples)
    for a, b in parts[:4].reshape(2, 2):
        notes += np.sin(2 * np.pi * (200 + 2000 * a) * seconds) * b
    made = 0.3 * notes + 0.05 * (parts[4:] - 0.5)
    return (np.round(made * 2**15) / 2**15).astype(np.float32)


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its name: kernels of convolutions are drawn as the matrices that they are."""
    if len(shape) < 4 and not name.endswith((".conv1.weight", ".conv2.weight")):
        return random_tensor(name, shape)
    matrix = (int(np.prod(shape[:1])), int(np.prod(shape[1:])))
    return random_tensor(name.replace("embed", "kernel"), matrix).reshape(shape)
