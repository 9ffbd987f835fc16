"""A model that was traced from torch code: operations over numbered values, without torch or jax.

`tracing` writes it, in a process with torch; `traced_model` computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Value(NamedTuple):
    """An input or the result of an operation, counted from the first input."""

    index: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. Arguments are values, numbers, lists of both, or dtypes by their names in jax."""

    name: str  # as torch names it, with its overload: aten.add.Tensor
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]  # arguments by keyword


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in order. The first inputs are weights and constants, the last those of a step."""

    inputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    output: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One call of the attention function, in the order of the calls."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    window: int | None  # tokens that a query sees, itself included; None: all
    chunk: int | None  # a query sees its own chunk of so many tokens; None: no chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsCall:
    """One layer's routed experts: gated feed-forwards whose gates lie above their ups."""

    first: str  # parameter [E, 2 F, D]; turned: [E, D, 2 F]
    second: str  # [E, D, F]; turned: [E, F, D]
    count: int
    embed: int
    ffw: int
    activation: str
    turned: bool


@dataclass(frozen=True, slots=True)
class StoredParameter:
    """How a checkpoint stores a parameter. One name: as it is; else a matrix of each expert."""

    names: tuple[str, ...]
    gates: tuple[str, ...] = ()  # of each expert, beside `names`, which are the ups


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGraphs:
    """A causal language model: tokens to hidden states, and hidden states to logits."""

    class_name: str
    hidden: Graph  # i32[T, 1] tokens, i32[T, 1] positions -> f32[T, 1, D]
    logits: Graph  # f32[R, 1, D] -> f32[R, 1, V]
    attention: tuple[AttentionCall, ...]
    experts: tuple[ExpertsCall, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of the parameters
    stored: Mapping[str, StoredParameter]
    whole_numbers: frozenset[str]  # parameters that are integers
    rowwise: frozenset[str]  # kernels that multiply nothing but one row per token
    constants: Mapping[str, np.ndarray]  # computed from the configuration
    unread: tuple[str, ...]  # tensors of its checkpoints that change no logits
    embed: int
    vocab: int


class TraceRefusal(Exception):
    """Raised for a model that cannot be served by tracing; the text says why."""
