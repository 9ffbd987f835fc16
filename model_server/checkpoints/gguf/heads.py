"""Converts attention heads, sliding windows and the keys that most decoders share.

From GGUF metadata to config.json and back. Pure; raises CheckpointError without a file name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.facts import Facts, Key
from sax.errors import CheckpointError

LAYERS = Key("num_hidden_layers", "block_count")
SIZES = (
    Key("hidden_size", "embedding_length"),
    LAYERS,
    Key("num_attention_heads", "attention.head_count"),
    Key("max_position_embeddings", "context_length"),
)
FFW = Key("intermediate_size", "feed_forward_length")
RMS_EPS = Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", float)
DECODER = (*SIZES, FFW, RMS_EPS)
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
SLIDING, FULL = "sliding_attention", "full_attention"


def read_heads(
    facts: Facts, config: Mapping[str, Any], kv_heads: int | None = None
) -> dict[str, Any]:
    """Return num_key_value_heads and head_dim, for heads whose dimensions all rotate.

    kv_heads: of the layers that attend, where the file gives a number for each layer.
    """
    heads = read_partly_rotated_heads(facts, config, kv_heads)
    rotated, size = heads.pop("rotated"), heads["head_dim"]
    if rotated != size:
        raise CheckpointError(f"it rotates {rotated} of {size} head dimensions; all must rotate")
    return heads


def read_partly_rotated_heads(
    facts: Facts, config: Mapping[str, Any], kv_heads: int | None = None
) -> dict[str, Any]:
    """Like `read_heads`, plus `rotated`, the number of dimensions per head that rotate."""
    heads = config["num_attention_heads"]
    if kv_heads is None:
        kv_heads = facts.whole("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise CheckpointError(f"its {heads} query heads are not a multiple of {kv_heads} key heads")
    size = facts.whole("attention.key_length", config["hidden_size"] // heads or None)
    if facts.whole("attention.value_length", size) != size:
        raise CheckpointError("its keys and values have heads of different sizes")
    return {"num_key_value_heads": kv_heads, "head_dim": size, "rotated": read_rotated(facts, size)}


def read_rotated(facts: Facts, size: int) -> int:
    """Return how many of a head's dimensions rotate; all, if the file does not say."""
    rotated = facts.whole("rope.dimension_count", size)
    if rotated % 2 or rotated > size:
        raise CheckpointError(
            f"it rotates {rotated} of {size} head dimensions; dimensions rotate in pairs"
        )
    return rotated


def read_counts(facts: Facts, suffix: str, layers: int) -> list[int]:
    """Return a number above 0 for each layer; one number is of all layers."""
    given = facts.get_any(suffix)
    counts = [given] * layers if type(given) is int else facts.listed(suffix, layers)
    if not all(type(count) is int and count > 0 for count in counts):
        raise CheckpointError(f"its {suffix} is {counts!r}, not a whole number for each layer")
    return counts


def count_of_kind(counts: Sequence[Any], slides: Sequence[Any], kind: bool) -> int:
    """Return the heads of the layers of a kind; of a kind without layers, those of the others."""
    found = {count for count, its in zip(counts, slides, strict=True) if bool(its) is kind}
    found = found or set(counts)
    if len(found) != 1 or not all(type(count) is int and count > 0 for count in found):
        raise CheckpointError(
            f"its attention.head_count is {counts}; layers of a kind must be alike"
        )
    return found.pop()


def head_dim(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def heads_metadata(config: Mapping[str, Any], rotated: int | None = None) -> dict[str, Any]:
    """Invert `read_heads`."""
    size = head_dim(config)
    return {
        "attention.head_count_kv": config.get("num_key_value_heads")
        or config["num_attention_heads"],
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": rotated or size,
    }


# --- sliding windows ----------------------------------------------------------------------------


def read_window(facts: Facts) -> int | None:
    """Return the window of a sliding layer in tokens; None if there is none."""
    return facts.whole(WINDOW) if facts.get(WINDOW) else None


def read_layer_types(facts: Facts, layers: int, period: int) -> list[str]:
    """Return each layer's type, from a flag per layer or a period (see `layer_types`)."""
    pattern = facts.get_any(PATTERN, period)
    if isinstance(pattern, np.ndarray) and pattern.shape == (layers,):
        return [SLIDING if slides else FULL for slides in pattern]
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        return layer_types(layers, pattern)
    raise CheckpointError(
        f"its {PATTERN} is {pattern!r}, neither a number of layers nor one flag for each"
    )


def layer_types(layers: int, period: int) -> list[str]:
    """Every `period`th layer has full attention, the others slide; 0: all slide."""
    return [SLIDING if period == 0 or (layer + 1) % period else FULL for layer in range(layers)]


def window_metadata(window: int | None, kinds: list[str], usual: int) -> dict[str, Any]:
    """Return the metadata of a window; `usual` is the family's period, which is not written."""
    if not window or SLIDING not in kinds:
        return {}
    layers = len(kinds)
    if kinds == layer_types(layers, usual):
        return {WINDOW: window}
    for period in range(layers + 1):
        if kinds == layer_types(layers, period):
            return {WINDOW: window, PATTERN: period}
    return {WINDOW: window, PATTERN: [kind == SLIDING for kind in kinds]}
