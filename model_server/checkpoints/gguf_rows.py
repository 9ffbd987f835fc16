"""Row permutations that llama.cpp's converter applies to attention projections.

An order is i64[rows]: for each row of Hugging Face's tensor, the row of the file that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The permutation of one projection's rows, for any number of heads."""

    heads: str  # config.json key with the number of heads
    parts: int  # projections fused into the tensor: 1, or 3 for q, k and v
    of: Callable[[int, int], np.ndarray]  # (rows, heads) -> order

    def for_tensor(self, rows: int, config: Mapping[str, Any], name: str) -> np.ndarray:
        """Return i64[rows]. Raises CheckpointError if `rows` does not match the heads."""
        heads = config[self.heads]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if rows != self.parts * heads * head_dim:
            wanted = self.parts * heads * head_dim
            raise CheckpointError(f"tensor {name} has {rows} rows; its heads need {wanted}")
        return self.of(rows, heads)


def halves_of_heads(rows: int, heads: int) -> np.ndarray:
    """Rotary pairs: neighbouring rows in the file, one in each half of a head here."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def heads_of_thirds(rows: int, heads: int) -> np.ndarray:
    """In the file all queries, then all keys, then all values; here q, k, v per head."""
    return np.arange(rows).reshape(3, heads, -1).swapaxes(0, 1).ravel()


def inverse(order: np.ndarray) -> np.ndarray:
    """Return, for each row of the file, the Hugging Face row that it holds."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def rotated(heads: str) -> RowOrder:
    """Llama's queries and keys."""
    return RowOrder(heads, 1, halves_of_heads)


def fused(heads: str) -> RowOrder:
    """GPT-NeoX's query_key_value."""
    return RowOrder(heads, 3, heads_of_thirds)
