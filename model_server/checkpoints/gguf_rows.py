"""Orders in which llama.cpp writes the rows of projections onto attention heads.

An order is i64[rows]: for each row of Hugging Face's tensor, the row of the file that holds it.
Pure arithmetic; knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class RowOrder:
    """How the rows of one projection are reordered, for any number of heads."""

    heads: str  # the config.json key with their number
    parts: int  # tensors of one row per head dimension that the projection holds
    of: Callable[[int, int], np.ndarray]  # (rows, heads) -> order

    def for_tensor(self, rows: int, config: Mapping[str, Any], name: str) -> np.ndarray:
        """The order of a tensor's rows. Raises CheckpointError if they are not those heads'."""
        heads = config[self.heads]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if rows != self.parts * heads * head_dim:
            wanted = self.parts * heads * head_dim
            raise CheckpointError(f"tensor {name} has {rows} rows; its heads make {wanted}")
        return self.of(rows, heads)


def halves_of_heads(rows: int, heads: int) -> np.ndarray:
    """Pairs that rotate together: neighbours in the file, in the two halves of a head here."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def heads_of_thirds(rows: int, heads: int) -> np.ndarray:
    """All queries, keys, values in the file; here head by head its query, key, value."""
    return np.arange(rows).reshape(3, heads, -1).swapaxes(0, 1).ravel()


def inverse(order: np.ndarray) -> np.ndarray:
    """For each row of the file, the row here that it holds."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def rotated(heads: str) -> RowOrder:
    """Llama's queries and keys."""
    return RowOrder(heads, 1, halves_of_heads)


def fused(heads: str) -> RowOrder:
    """GPT-NeoX's query_key_value."""
    return RowOrder(heads, 3, heads_of_thirds)
