"""Recipes of models that speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.models.audio.vits_config import VitsConfig
from model_server.models.audio.vits_weights import Vits, needed
from model_server.models.weights.weight import Blueprint, blueprint
from sax.errors import InvalidRequest
from sax.format import quoted

DEFAULT_VOICE = "default"
MOST_VOICES = 256
_MOST_NAME = 64  # characters of a voice's name
_MOST_BUCKETS = 8
_BOUNDS = {"TOKEN_BUCKETS": (16, 2048), "FRAME_BUCKETS": (16, 8192)}

# Serving defaults of every model that speaks.
SYNTHESIZER_DEFAULTS: Mapping[str, Any] = {
    "DTYPE": "float32",  # of weights and products: float32 or bfloat16
    "VOICES": {},  # names for the model's speakers, such as {"alloy": 0}
    "TOKEN_BUCKETS": [128, 256, 512],  # sizes of pieces of text that are compiled
    "FRAME_BUCKETS": [256, 512, 1024, 2048],  # sizes of their sounds, likewise
}


class SynthesizerBuckets(NamedTuple):
    """Sizes that are compiled, ascending; longer texts are cut into pieces."""

    tokens: tuple[int, ...]
    frames: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesizerRecipe:
    """A model that speaks, configured but not in memory."""

    blueprint: Blueprint  # of a Vits
    config: VitsConfig
    dtype: Any
    voices: Mapping[str, int]  # every name of a speaker; the first is the default
    buckets: SynthesizerBuckets

    def needed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint without what only training uses."""
        return needed(checkpoint, self.config)


Configure = Callable[[Mapping[str, Any], Mapping[str, Any]], SynthesizerRecipe]


@dataclass(frozen=True, slots=True)
class SynthesizerClass:
    """A registry entry: a model path and how to build its recipe from a config.json and values."""

    path: str
    model_types: tuple[str, ...]  # of config.json
    overridable: Mapping[str, Any]
    configure: Configure
    title: str  # display name
    needs_checkpoint: bool = True


def check_synthesizer(values: Mapping[str, Any]) -> SynthesizerBuckets:
    """Validate override values. Raises InvalidRequest for those with which no load can succeed."""
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE must be "bfloat16" or "float32", not {values["DTYPE"]!r}',
            param="overrides.DTYPE",
        )
    given = values["VOICES"]
    if not isinstance(given, Mapping) or len(given) > MOST_VOICES:
        raise _wrong_voices(f"VOICES is {given!r}")
    for name, speaker in given.items():
        if not name or len(name) > _MOST_NAME or type(speaker) is not int or speaker < 0:
            raise _wrong_voices(f"VOICES has {quoted(str(name))}: {speaker!r}")
    return SynthesizerBuckets(_buckets(values, "TOKEN_BUCKETS"), _buckets(values, "FRAME_BUCKETS"))


def _buckets(values: Mapping[str, Any], key: str) -> tuple[int, ...]:
    given, (least, most) = values[key], _BOUNDS[key]
    good = isinstance(given, list) and 0 < len(given) <= _MOST_BUCKETS
    if not good or not all(type(each) is int and least <= each <= most for each in given):
        raise InvalidRequest(
            f"{key} is {given!r}: give a list of up to {_MOST_BUCKETS} whole numbers from {least} "
            f"to {most}",
            param=f"overrides.{key}",
        )
    return tuple(sorted({*given}))


def _wrong_voices(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what}: give an object of at most {MOST_VOICES} names of up to {_MOST_NAME} characters "
        'and the numbers of speakers, such as {"alloy": 0}',
        param="overrides.VOICES",
    )


def _voices(given: Mapping[str, int], speakers: int) -> Mapping[str, int]:
    """Return every name of a speaker. Raises InvalidRequest for one that the model has not."""
    for name, speaker in given.items():
        if speaker >= speakers:
            raise InvalidRequest(
                f"VOICES gives {quoted(name)} to speaker {speaker}; this checkpoint has speakers 0 "
                f"to {speakers - 1}",
                param="overrides.VOICES",
            )
    own = {str(number): number for number in range(speakers)} if speakers > 1 else {}
    return {DEFAULT_VOICE: 0, **own, **given}


def _configure(config: Mapping[str, Any], values: Mapping[str, Any]) -> SynthesizerRecipe:
    """Return the recipe of a checkpoint. Raises CheckpointError, InvalidRequest."""
    buckets = check_synthesizer(values)
    sizes, dtype = VitsConfig.from_hf(config), jnp.dtype(values["DTYPE"])
    return SynthesizerRecipe(
        blueprint=blueprint(lambda: Vits(sizes, dtype)),
        config=sizes,
        dtype=dtype,
        voices=_voices(values["VOICES"], sizes.speakers),
        buckets=buckets,
    )


VITS = SynthesizerClass("vits", ("vits",), SYNTHESIZER_DEFAULTS, _configure, title="VITS")
