"""The rows of a step that are not padding, for the native kernels: they skip the others.

So one compiled shape serves any number of sequences, and costs what they cost.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.attention import Attention
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Embedding, Linear, RmsNorm


def set_live_rows(model: Any, tokens: jax.Array, heads: jax.Array) -> None:
    """Set the rows of the next call.

    tokens: bool[T], of the flat batch; heads: bool[R], of those that logits are made of.
    """
    rows, of_head = _places(tokens), _places(heads)
    for _, node in nnx.iter_graph(model):
        own = isinstance(node, RmsNorm | GatedFeedForward | Attention)
        if own or (isinstance(node, Linear) and node.skips):
            node.live = nnx.Variable(rows)
    head = getattr(model, "head", None) or getattr(model, "embedding", None)
    if isinstance(head, Linear | Embedding) and head.skips:
        head.live = nnx.Variable(of_head)


def _places(there: jax.Array) -> jax.Array:
    """i32[T]: where it is True, in order, then -1."""
    (places,) = jnp.nonzero(there, size=there.shape[0], fill_value=-1)
    return places.astype(jnp.int32)
