"""A row of the tables of models with image, video or audio input, and what they are made of.

config.json and the files of processors are given, in the folder of golden/media; they are as
published checkpoints have them. Knows no transformers and no torch; what a row needs of them it
imports when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common
from tests.tools.golden.common import Changes, Shapes

FOLDER = common.GOLDEN / "media"


class Seen(NamedTuple):
    """Images or sounds as the reference model takes them."""

    rows: Sequence[Sequence[int]]  # tokens of each in the prompt
    inputs: Mapping[str, Any]  # further arguments of the model, tensors
    pieces: Sequence[np.ndarray]  # of each, what the processor makes of it
    # What else the golden file holds: of videos, what the processor chooses.
    others: Mapping[str, np.ndarray] = {}


def features(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """The model's vectors of each image, [rows, W]."""
    return list(model.get_image_features(**seen.inputs).pooler_output)


@dataclass(frozen=True, slots=True)
class Reader:
    """How the reference reads images or sounds of a kind of model."""

    see: Callable[[MediaCase, Sequence[np.ndarray]], Seen]  # images u8[h, w, 3], sounds f32[n]
    vectors: Callable[[Any, Seen, Sequence[int]], Sequence[Any]] = features
    first: tuple[int, ...] = (1,)  # tokens of a prompt
    growth: int = 3  # how many more tokens follow each next image
    kinds: tuple[str, int] | None = None  # argument that marks the places of this token
    kind: int = 1  # how it marks them
    masked: bool = False  # the model finds positions only beside an attention mask
    # Tokens that the model answers, behind a prompt whose own ones see each other, and the argument
    # that marks them
    answers: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class MediaCase:
    name: str  # of the folder
    reader: Reader
    images: tuple[tuple[int, int], ...] = ()  # height and width of each
    sounds: tuple[int, ...] = ()  # samples of each
    videos: tuple[tuple[int, int, int], ...] = ()  # frames, height and width of each
    order: tuple[str, ...] = ()  # names of all of them as they stand in the prompt; (): as made
    heard: bool = False  # a sound right behind a video in that order is the video's own
    # The class that computes it, and the key of its part of the config; "": as the config says.
    model: str = ""
    part: str = ""
    # Feature -> changes to the config that switch it off: the logits must change.
    without: Mapping[str, Changes] = field(default_factory=dict)
    # What transformers calls a tensor -> what published checkpoints call it.
    published: Callable[[str], str] = lambda name: name
    # Tensors as transformers saves them -> as published checkpoints hold the same numbers.
    stored: Callable[[Shapes], Shapes] = lambda shapes: shapes
    # Settings of PEFT's LoraConfig: of an adapter that answers prompts with media, and no others.
    adapter: Mapping[str, Any] = field(default_factory=dict)
    # Endings of tensors that transformers computes itself, which published checkpoints do not hold.
    left_out: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        return common.read_json(FOLDER / self.name / "config.json")

    @property
    def preprocessor(self) -> dict[str, Any]:
        return common.read_json(FOLDER / self.name / "preprocessor_config.json")

    @property
    def video_preprocessor(self) -> dict[str, Any]:
        return common.read_json(FOLDER / self.name / "video_preprocessor_config.json")

    def of(self, part: str) -> dict[str, Any]:
        """What processor_config.json says of one of its parts, else preprocessor_config.json."""
        return self.processors.get("processor_config.json", {}).get(part) or self.preprocessor

    @property
    def processors(self) -> dict[str, Any]:
        """Every file beside config.json, by name."""
        found = sorted((FOLDER / self.name).glob("*processor_config.json"))
        return {each.name: common.read_json(each) for each in found}

    def media(self) -> dict[str, np.ndarray]:
        """The images, u8[h, w, 3] each, or the sounds at 16 kHz, f32[n] each, or the frames of
        videos, u8[T, h, w, 3]."""
        made = {f"image_{n}": size for n, size in enumerate(self.images)}
        held = {f"sound_{n}": size for n, size in enumerate(self.sounds)}
        each = (
            {
                key: image_of(f"{key.replace('_', ' ')} of {self.name}", *size)
                for key, size in made.items()
            }
            | {
                key: sound_of(f"{key.replace('_', ' ')} of {self.name}", size)
                for key, size in held.items()
            }
            | {
                f"video_{n}": video_of(f"video {n} of {self.name}", *size)
                for n, size in enumerate(self.videos)
            }
        )
        return {key: each[key] for key in self.order} if self.order else each

    def prompt(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Text, image, text, image, ..., text."""
        prompt = [*self.reader.first, *self._words(0, 5)]
        for number, tokens in enumerate(rows):
            prompt += [*tokens, *self._words(1 + number, 1 + self.reader.growth * number)]
        return prompt

    def _words(self, part: int, count: int) -> list[int]:
        """Tokens of a text between images, none of the first and of the last ten."""
        own = self.config.get(self.part, self.config)
        span = own.get("text_config", own)["vocab_size"] - 13
        drawn = uniform(f"part {part} of {self.name}", count)
        return [3 + int(each * span) for each in drawn]


def image_of(name: str, height: int, width: int) -> np.ndarray:
    """u8[h, w, 3]: colours that change slowly, with some noise."""
    parts = uniform(name, 6 + height * width * 3)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(a * 9 * x / width + b * 9 * y / height) for a, b in parts[:6].reshape(3, 2)]
    noise = parts[6:].reshape(height, width, 3)
    return (np.stack(waves, -1) * 90 + 100 + noise * 60).astype(np.uint8)


def video_of(name: str, frames: int, height: int, width: int) -> np.ndarray:
    """u8[T, h, w, 3]: each frame an image of its own."""
    return np.stack([image_of(f"frame {n} of {name}", height, width) for n in range(frames)])


def sound_of(name: str, samples: int) -> np.ndarray:
    """f32[n]: two notes over a little noise, in steps that a file of 16 bits can hold."""
    parts = uniform(name, 4 + samples)
    seconds = np.arange(samples) / 16_000
    notes = np.zeros(samples)
    for a, b in parts[:4].reshape(2, 2):
        notes += np.sin(2 * np.pi * (200 + 2000 * a) * seconds) * b
    made = 0.3 * notes + 0.05 * (parts[4:] - 0.5)
    return (np.round(made * 2**15) / 2**15).astype(np.float32)


_KERNELS = (".conv1.weight", ".conv2.weight", ".up_conv.weight", ".down_conv.weight")
_KERNELS += (".pw_conv.weight", "ext_pw_conv_1d.weight")


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its name: kernels of convolutions are drawn as the matrices that they are.

    Bounds of a projection's numbers are such that they cut some of them off.
    """
    if name.endswith(("_min", "_max")):
        made = random_tensor(name, shape)
        return np.asarray(made if name.endswith("_max") else -made)
    if len(shape) < 4 and not name.endswith(_KERNELS):
        return random_tensor(name, shape)
    matrix = (int(np.prod(shape[:1])), int(np.prod(shape[1:])))
    return random_tensor(name.replace("embed", "kernel"), matrix).reshape(shape)


def with_vision(name: str, changes: Mapping[str, Any], **outer: Any) -> dict[str, Any]:
    """The config of a folder with another vision encoder."""
    own = common.read_json(FOLDER / name / "config.json")
    return own | {"vision_config": own["vision_config"] | changes} | outer
