"""What a family of embedding models hands to the loader, as recipe.py does for language models.

Knows nothing of pooling files, buckets or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx

from model_server.models.weight import Blueprint, WeightForm, blueprint
from sax.errors import InvalidRequest

# Serving values of every embedder.
EMBEDDER_DEFAULTS: Mapping[str, Any] = {
    # Of weights: bfloat16 or float32. These models are small, and their vectors are compared with
    # ones that were stored before: as exact as the reference unless told otherwise.
    "DTYPE": "float32",
    "MAX_CONTEXT": None,  # tokens of one input; null: the model's own
    "BATCH_SIZE": 16,  # inputs of one step at most
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRecipe:
    """One embedding model, configured but not in memory.

    The module maps tokens i32[B, T] and lengths i32[B] to hidden states f32[B, T, D].
    """

    build: Callable[[WeightForm], nnx.Module]
    embed: int
    vocab: int
    own_context: int  # positions the model has
    max_context: int | None  # what the publish asks for; None: as the checkpoint says
    dtype: str
    batch: int
    # checkpoint tensors of heads that an embedding does not need, by prefix
    unused: tuple[str, ...] = ()

    def blueprint(self) -> Blueprint:
        """The module without its weights."""
        form = WeightForm(dtype=jnp.dtype(self.dtype))
        return blueprint(lambda: self.build(form))


@dataclass(frozen=True, slots=True)
class EmbedderClass:
    """One entry of the registry: a model path and how to make a recipe for it."""

    path: str
    overridable: Mapping[str, Any]
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]
    needs_checkpoint: ClassVar[bool] = True  # sizes and tokenizer come from there


@dataclass(frozen=True, slots=True)
class EmbedderFamily:
    """Embedding models that take their sizes from a checkpoint: one line of the registry."""

    path: str  # the short name a publish may give
    model_types: tuple[str, ...]  # of config.json
    title: str  # what people call these models
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]

    def model_class(self) -> EmbedderClass:
        """The registry's entry for it."""
        return EmbedderClass(self.path, EMBEDDER_DEFAULTS, self.configure)


def embedding(values: Mapping[str, Any], own_context: int) -> dict[str, Any]:
    """The recipe's serving fields from override values. Raises InvalidRequest."""
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE is "bfloat16" or "float32", not {values["DTYPE"]!r}', param="overrides.DTYPE"
        )
    for key in ("MAX_CONTEXT", "BATCH_SIZE"):
        if values[key] is not None and values[key] < 1:
            raise InvalidRequest(
                f"{key} is {values[key]}; it must be at least 1", param=f"overrides.{key}"
            )
    if values["BATCH_SIZE"] is None:
        raise InvalidRequest("BATCH_SIZE must be a number", param="overrides.BATCH_SIZE")
    wanted = values["MAX_CONTEXT"]
    if wanted is not None and wanted > own_context:
        raise InvalidRequest(
            f"MAX_CONTEXT {wanted} is more than the {own_context} tokens this model was made for",
            param="overrides.MAX_CONTEXT",
        )
    return {
        "own_context": own_context,
        "max_context": wanted,
        "dtype": values["DTYPE"],
        "batch": values["BATCH_SIZE"],
    }
