"""Recipes of models that write down speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.weights.sharding import Layout, asked_layout
from model_server.models.weights.weight import Blueprint
from sax.errors import InvalidRequest

HEAD = "proj_out.weight"
_MOST_BATCH = 64  # windows of a step
MOST_MINUTES = 120  # of one recording; a process of 2 GiB decodes it

# Serving defaults of every model of sounds.
AUDIO_DEFAULTS: Mapping[str, Any] = {
    "DTYPE": "bfloat16",  # of weights and products: float32 or bfloat16
    "BATCH_SIZE": 8,  # most windows that are decoded together
    "MAX_AUDIO_MINUTES": 60,  # of one recording
    "ICI_MESH_SHAPE": None,  # devices on the axes replica, data, model; null: one device
}


class AudioServing(NamedTuple):
    batches: tuple[int, ...]  # numbers of windows that are compiled, ascending
    max_minutes: int
    layout: Layout  # over an abstract mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRecipe:
    """A model that writes down speech, configured but not in memory."""

    blueprint: Blueprint  # of a Whisper
    config: WhisperConfig
    dtype: Any
    serving: AudioServing

    def needed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint without a head that repeats the embedding."""
        if not self.config.tied:
            return checkpoint
        return view_of(checkpoint, {each: each for each in checkpoint.names() if each != HEAD})


Configure = Callable[[Mapping[str, Any], Mapping[str, Any]], AudioRecipe]


@dataclass(frozen=True, slots=True)
class AudioClass:
    """A registry entry: a model path and how to build its recipe from a config.json and values."""

    path: str
    model_types: tuple[str, ...]  # of config.json
    overridable: Mapping[str, Any]
    configure: Configure
    title: str  # display name
    needs_checkpoint: bool = True


def serving_of(values: Mapping[str, Any]) -> AudioServing:
    """Validate override values. Raises InvalidRequest."""
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE must be "bfloat16" or "float32", not {values["DTYPE"]!r}',
            param="overrides.DTYPE",
        )
    most = _whole(values, "BATCH_SIZE", _MOST_BATCH)
    sizes = {size for size in (1, 4, 16) if size < most} | {most}
    minutes = _whole(values, "MAX_AUDIO_MINUTES", MOST_MINUTES)
    layout = asked_layout(values["ICI_MESH_SHAPE"])
    return AudioServing(batches=tuple(sorted(sizes)), max_minutes=minutes, layout=layout)


def _whole(values: Mapping[str, Any], key: str, most: int) -> int:
    value = values[key]
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidRequest(
            f"{key} is {value!r}: give a whole number from 1 to {most}", param=f"overrides.{key}"
        )
    return value
