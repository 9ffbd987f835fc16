"""Recipes of embedding models: the counterpart of recipe.py for embedders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.weights.weight import Blueprint, WeightForm, blueprint
from sax.errors import InvalidRequest

Pool = Callable[[jax.Array, jax.Array], jax.Array]  # f32[B, T, D], bool[B, T] -> f32[B, D]


def _cls(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return hidden[:, 0]


def _mean(hidden: jax.Array, there: jax.Array) -> jax.Array:
    total = jnp.where(there[..., None], hidden, 0.0).sum(1)
    return total / there.sum(1, keepdims=True).astype(total.dtype)


def _max(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return jnp.where(there[..., None], hidden, -jnp.inf).max(1)


POOLINGS: dict[str, Pool] = {"cls": _cls, "mean": _mean, "max": _max}


def pooled(
    hidden: jax.Array,  # f32[B, T, D]
    lengths: jax.Array,  # i32[B]
    *,
    pooling: str,
    normalise: bool,
) -> jax.Array:
    """f32[B, D]: one vector per text, of unit length if `normalise`."""
    there = jnp.arange(hidden.shape[1])[None] < lengths[:, None]
    vectors = POOLINGS[pooling](hidden, there)
    if not normalise:
        return vectors
    size = jnp.sqrt(jnp.square(vectors).sum(-1, keepdims=True))
    return vectors / jnp.maximum(size, 1e-12)


# Serving defaults of every embedder.
EMBEDDER_DEFAULTS: Mapping[str, Any] = {
    # Weight dtype: bfloat16 or float32. These models are small and their vectors are compared with
    # ones stored earlier, so match the reference exactly by default.
    "DTYPE": "float32",
    "MAX_CONTEXT": None,  # tokens per input; null: the model's own
    "BATCH_SIZE": 16,  # most inputs per step
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRecipe:
    """An embedding model, configured but not in memory.

    The module maps tokens i32[B, T] and lengths i32[B] to hidden states f32[B, T, D].
    """

    build: Callable[[WeightForm], nnx.Module]
    embed: int
    vocab: int
    own_context: int  # positions the model has
    max_context: int | None  # from the publish; None: as the checkpoint says
    dtype: str
    batch: int
    # prefixes of checkpoint tensors (heads) that an embedding does not need
    unused: tuple[str, ...] = ()

    def blueprint(self) -> Blueprint:
        form = WeightForm(dtype=jnp.dtype(self.dtype))
        return blueprint(lambda: self.build(form))


@dataclass(frozen=True, slots=True)
class EmbedderClass:
    """A registry entry: a model path and how to build its recipe."""

    path: str
    overridable: Mapping[str, Any]
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]
    needs_checkpoint: ClassVar[bool] = True  # for sizes and tokenizer


@dataclass(frozen=True, slots=True)
class EmbedderFamily:
    """Embedding models sized by their checkpoint; one line of the registry."""

    path: str  # short name accepted by publish
    model_types: tuple[str, ...]  # of config.json
    title: str  # display name
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]

    def model_class(self) -> EmbedderClass:
        return EmbedderClass(self.path, EMBEDDER_DEFAULTS, self.configure)


def embedding(values: Mapping[str, Any], own_context: int) -> dict[str, Any]:
    """Validate override values into the recipe's serving fields. Raises InvalidRequest."""
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE must be "bfloat16" or "float32", not {values["DTYPE"]!r}',
            param="overrides.DTYPE",
        )
    for key in ("MAX_CONTEXT", "BATCH_SIZE"):
        if values[key] is not None and (type(values[key]) is not int or values[key] < 1):
            raise InvalidRequest(
                f"{key} is {values[key]!r}; it must be a number, at least 1",
                param=f"overrides.{key}",
            )
    if values["BATCH_SIZE"] is None:
        raise InvalidRequest("BATCH_SIZE must be a number", param="overrides.BATCH_SIZE")
    wanted = values["MAX_CONTEXT"]
    if wanted is not None and wanted > own_context:
        raise InvalidRequest(
            f"MAX_CONTEXT {wanted} is more than the {own_context} tokens this model supports",
            param="overrides.MAX_CONTEXT",
        )
    return {
        "own_context": own_context,
        "max_context": wanted,
        "dtype": values["DTYPE"],
        "batch": values["BATCH_SIZE"],
    }
