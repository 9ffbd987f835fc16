"""What a family hands to the loader: how to build the module, and how it wants to be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from sax.errors import InvalidRequest
from sax.types import SamplingParams

# Serving values that every model class has; a family adds its own sizes.
SERVING_DEFAULTS: Mapping[str, Any] = {
    "DTYPE": "bfloat16",  # of weights: bfloat16 or float32
    "MAX_CONTEXT": None,  # prompt plus answer, tokens; null: the model's own
    "NUM_CACHE_SLOTS": None,  # sequences that decode at once; null: the server's flag
    "NUM_SAMPLES": 1,  # answers of one Saxml Generate call
    "TEMPERATURE": 1.0,
    "TOP_K": 0,
    "TOP_P": 1.0,
    # How a Saxml Generate query becomes a prompt: "chat" as a user's turn in the chat template,
    # "raw" as it stands; null: chat where the checkpoint has a template (an instruct model answers
    # a bare question with nothing), raw elsewhere.
    "QUERY_FORMAT": None,
    "MAX_DECODE_STEPS": 128,  # of a Saxml call that gives no per_example_max_decode_steps
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One model, configured but not in memory."""

    build: Callable[[], nnx.Module]
    layers: int
    kv_heads: int
    head_dim: int
    embed: int
    vocab: int
    max_context: int
    dtype: str
    slots: int | None  # None: the server's flag
    samples: int
    query_format: str | None  # chat, raw; None: chat where there is a template
    defaults: SamplingParams


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One entry of the registry: a model path and how to make a recipe for it."""

    path: str
    needs_checkpoint: bool
    overridable: Mapping[str, Any]
    # config.json of the checkpoint (None: random weights), checked override values -> recipe
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]


def serving(values: Mapping[str, Any], own_context: int) -> dict[str, Any]:
    """The recipe's serving fields from override values. Raises InvalidRequest."""
    dtype = values["DTYPE"]
    if dtype not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE is "bfloat16" or "float32", not {dtype!r}', param="overrides.DTYPE"
        )
    if values["QUERY_FORMAT"] not in ("chat", "raw", None):
        raise InvalidRequest(
            f'QUERY_FORMAT is "chat", "raw" or null, not {values["QUERY_FORMAT"]!r}',
            param="overrides.QUERY_FORMAT",
        )
    _check_positive(values, "MAX_CONTEXT", "NUM_CACHE_SLOTS", "NUM_SAMPLES", "MAX_DECODE_STEPS")
    wanted = values["MAX_CONTEXT"]
    if wanted is not None and wanted > own_context:
        raise InvalidRequest(
            f"MAX_CONTEXT {wanted} is more than the {own_context} tokens this model was made for",
            param="overrides.MAX_CONTEXT",
        )
    return {
        "dtype": dtype,
        "max_context": wanted or own_context,
        "slots": values["NUM_CACHE_SLOTS"],
        "samples": values["NUM_SAMPLES"],
        "query_format": values["QUERY_FORMAT"],
        "defaults": SamplingParams(
            temperature=values["TEMPERATURE"],
            top_k=values["TOP_K"],
            top_p=values["TOP_P"],
            max_tokens=values["MAX_DECODE_STEPS"],
        ),
    }


def _check_positive(values: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if values[key] is not None and values[key] < 1:
            raise InvalidRequest(
                f"{key} is {values[key]}; it must be at least 1", param=f"overrides.{key}"
            )
