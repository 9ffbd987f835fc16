"""Recipes of models that look at images: what they compute, and how an image is brought to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.models.weights.sharding import Layout, asked_layout
from model_server.models.weights.weight import Blueprint
from model_server.sharing.images.forms import SquareForm
from sax.errors import InvalidRequest
from sax.overrides.value_rule import as_list

_MOST_BATCH = 256  # images of a step
_MOST_SIZE = 1024  # pixels of a side


class Colours(NamedTuple):
    """From a byte of a pixel to what the model takes: (byte * scale - mean) / deviation."""

    scale: float
    mean: tuple[float, ...]  # of red, green and blue
    deviation: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ImageSettings:
    form: SquareForm
    colours: Colours


class ImageOutputs(NamedTuple):
    """Outputs of a model for a batch of images."""

    vectors: jax.Array  # f32[B, D]
    logits: jax.Array  # f32[B, labels]


class VisionNetwork(Protocol):
    """A module of declared weights."""

    def prepared(self) -> Any:
        """Return what `see` takes, arrays that are computed once, as a tree."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRecipe:
    """A model that classifies and embeds images, configured but not in memory."""

    blueprint: Blueprint  # of a VisionNetwork
    see: Callable[[Any, jax.Array], ImageOutputs]  # `prepared`, pixels f32[B, S, S, 3]
    labels: tuple[str, ...]
    embed: int  # numbers of a vector
    top_k: int  # labels of an answer
    batches: tuple[int, ...]  # numbers of images that are compiled, ascending
    image_size: int | None  # pixels of a side, from the publish; None: as the checkpoint says
    layout: Layout  # over an abstract mesh


Configure = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], VisionRecipe]


@dataclass(frozen=True, slots=True)
class VisionClass:
    """A registry entry: a model path and how to build its recipe from a config.json and values."""

    path: str
    model_types: tuple[str, ...]  # of config.json
    overridable: Mapping[str, Any]
    configure: Configure
    needs_checkpoint: bool
    title: str  # display name
    unused: tuple[str, ...] = ()  # ends of names of tensors that answers do not need
    found_by_type: bool = True  # `auto` finds it by its model_type


def needed_of(checkpoint: Checkpoint, unused: tuple[str, ...]) -> Checkpoint:
    """Return the checkpoint without the tensors whose names end so."""
    kept = [name for name in checkpoint.names() if not name.endswith(unused)]
    return view_of(checkpoint, {name: name for name in kept})


# Serving defaults of every model of images.
VISION_DEFAULTS: Mapping[str, Any] = {
    "DTYPE": "float32",  # of weights and products: float32 or bfloat16
    "IMAGE_SIZE": None,  # pixels of a side; null: as the checkpoint says
    "BATCH_SIZE": 16,  # most images of a step; of Saxml's class a list of numbers to compile
    "TOP_K": 5,  # labels of an answer
    "ICI_MESH_SHAPE": None,  # devices on the axes replica, data, model; null: one device
}


def batch_sizes(value: Any) -> tuple[int, ...]:
    """Return the numbers of images to compile: a list's, or 1, 4, 16, ... up to a number.

    Raises InvalidRequest.
    """
    given = as_list(value)
    if not given or not all(type(each) is int and 1 <= each <= _MOST_BATCH for each in given):
        raise InvalidRequest(
            f"BATCH_SIZE is {value!r}: give a whole number from 1 to {_MOST_BATCH}, or a list of "
            "them",
            param="overrides.BATCH_SIZE",
        )
    if isinstance(value, int):
        given = [size for size in (4**n for n in range(5)) if size < value] + [value]
    return tuple(sorted(set(given)))


def serving_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate override values into the recipe's serving fields. Raises InvalidRequest."""
    for key, least, most in (("TOP_K", 1, 2**24), ("IMAGE_SIZE", 32, _MOST_SIZE)):
        value = values[key]
        optional = key == "IMAGE_SIZE" and value is None
        if not optional and (type(value) is not int or not least <= value <= most):
            raise InvalidRequest(
                f"{key} is {value!r}: give a whole number from {least} to {most}",
                param=f"overrides.{key}",
            )
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE must be "bfloat16" or "float32", not {values["DTYPE"]!r}',
            param="overrides.DTYPE",
        )
    return {
        "top_k": values["TOP_K"],
        "image_size": values["IMAGE_SIZE"],
        "batches": batch_sizes(values["BATCH_SIZE"]),
        "layout": asked_layout(values["ICI_MESH_SHAPE"]),
    }
