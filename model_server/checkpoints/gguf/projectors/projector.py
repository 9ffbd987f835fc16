"""One kind of encoder as llama.cpp's converter writes it, undone into a folder's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from model_server.checkpoints.gguf.architecture import Config, halves_of_heads
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.media_part import AUDIO, VISION

Parts = Mapping[str, tuple[str, ...]]  # name in a folder -> tensors of the file
# Returns the numbers of a folder's tensor, given those of the file's and the encoder's sizes.
Undo = Callable[[np.ndarray, Config], np.ndarray]

SEEING, HEARING = "vision", "audio"
FRAMES = ("v.patch_embd.weight", "v.patch_embd.weight.1")  # of a pair of pictures


class Place(NamedTuple):
    name: str  # in a folder
    parts: tuple[str, ...]  # in the file
    key: str  # in the tables
    at: int | None = None  # the part is a stack, of which it is this one


@dataclass(frozen=True, kw_only=True)
class GgufProjector:
    """The declaration of one kind of encoder."""

    side: str = SEEING  # of its metadata
    texts: Mapping[str, str]  # model_type of the text's file -> of a text model with this encoder
    around: bool = False  # the family takes the text models of others
    fits: Callable[[Facts], bool] = lambda facts: True  # of several of one name
    token: str  # whose places the vectors take
    token_key: str = "image_token_id"
    around_token: Mapping[str, str] = field(default_factory=dict)  # more tokens, by key
    tensors: Parts = field(default_factory=dict)  # less .weight and .bias
    whole: Parts = field(default_factory=dict)  # whole names
    layers: str = ""  # a layer's prefix in a folder; "": layers are not alike, and `more` has them
    prefix: str = "v.blk"  # in the file
    layer_tensors: Parts = field(default_factory=dict)  # less .weight and .bias
    layer_whole: Parts = field(default_factory=dict)
    # vision_config or audio_config, of common sizes and the ids of the tokens around
    encoder: Callable[[Facts, dict[str, Any]], dict[str, Any]]
    outer: Callable[[Facts, dict[str, Any]], dict[str, Any]] = lambda facts, encoder: {}
    # What the family's preprocessor_config.json says, of what the others have
    pictures: Callable[[dict[str, Any], Config], dict[str, Any]] = lambda given, sizes: given
    undone: Mapping[str, Undo] = field(default_factory=dict)  # by key of these tables
    ignored: tuple[str, ...] = ()  # tensors of the file
    unused: tuple[str, ...] = ()  # metadata that changes nothing
    # More tensors by whole name, given the names in the file; `undone` has them less their layers
    more: Callable[[Config, Collection[str]], Parts] = lambda encoder, names: {}
    # Tensors that are stacked in the file: the stack, and which of it
    stacked: Callable[[Config], Mapping[str, tuple[str, int]]] = lambda encoder: {}
    spellings: Mapping[str, str] = field(default_factory=dict)  # part of a name -> as in the tables

    @property
    def part(self) -> str:
        """The key of config.json."""
        return VISION if self.side == SEEING else AUDIO

    @property
    def tokens(self) -> dict[str, str]:
        """By key of config.json."""
        return {self.token_key: self.token, **self.around_token}

    def places(self, layers: int, encoder: Config, names: Collection[str]) -> Iterator[Place]:
        """Yield all tensors; encoder: vision_config or audio_config; names: in the file."""
        for name, parts in self.tensors.items():
            yield from _with_ends(name, parts, name)
        for name, parts in self.whole.items():
            yield Place(name, parts, name)
        for name, parts in self.more(encoder, names).items():
            yield Place(name, parts, _NUMBERED.split(name)[-1])
        for name, (part, at) in self.stacked(encoder).items():
            yield Place(name, (part,), name, at)
        for layer in range(layers):
            for name, parts in self.layer_tensors.items():
                yield from _with_ends(
                    f"{self.layers}.{layer}.{name}", self._own(layer, parts), name
                )
            for name, parts in self.layer_whole.items():
                yield Place(f"{self.layers}.{layer}.{name}", self._own(layer, parts), name)

    def _own(self, layer: int, parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{self.prefix}.{layer}.{part}" for part in parts)


def _with_ends(name: str, parts: tuple[str, ...], key: str) -> Iterator[Place]:
    for end in ("weight", "bias"):
        yield Place(f"{name}.{end}", tuple(f"{part}.{end}" for part in parts), key)


def with_ends(stems: Parts) -> Parts:
    """Return whole names, given those less .weight and .bias."""
    places = (each for name, parts in stems.items() for each in _with_ends(name, parts, name))
    return {place.name: place.parts for place in places}


_NUMBERED = re.compile(r"(?:\.\d+)+\.")  # what the name of a layer ends with
_ENDS = ("input_min", "input_max", "output_min", "output_max")


def bounded(names: Mapping[str, str]) -> Parts:
    """Return a layer's projections, by name in a folder, with the bounds that they may have."""
    weights = {f"{name}.linear.weight": (f"{part}.weight",) for name, part in names.items()}
    return {**weights, **_bounds(names)}


def undone_bounds(names: Mapping[str, str]) -> dict[str, Undo]:
    return dict.fromkeys(_bounds(names), _number)


def _bounds(names: Mapping[str, str]) -> Parts:
    return {f"{name}.{end}": (f"{part}.{end}",) for name, part in names.items() for end in _ENDS}


def _number(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that a number became a list."""
    return numbers.reshape(())


def flat(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that a vector became a column, or one of channels."""
    return numbers.reshape(-1)


def filters(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that a channel's filter lost the dimension of its one input."""
    return numbers[:, None]


def less_one(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that the converter added one to a norm's scale."""
    return numbers - np.float32(1)


def rotated(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that rotary pairs are neighbours in the file."""
    return numbers[halves_of_heads(len(numbers), sizes["num_attention_heads"])]
