"""Presents what transformers saves as published checkpoints hold it, where the two differ.

It saves what MiniMax and Qwen4 compute from their sizes, and gives a norm of OLMo Hybrid the name
that it has in other layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.checkpoints.ngram_hashes import NGramHashes, ngram_hashes
from sax.errors import CheckpointError

_RATES = re.compile(r"model\.layers\.(\d+)\.self_attn\.slope_rate")
_COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
_CLOSE = 0.01  # rates may be stored in bfloat16
_HASHES = re.compile(
    r"model\.layers\.(\d+)\.ple\.ple_embedding\.(layer_multipliers|ngram_heads_.*)"
)


def as_published(checkpoint: Checkpoint) -> Checkpoint:
    """Raises CheckpointError for rates or hashes of another model than its sizes make."""
    kind = checkpoint.config.get("model_type")
    if kind == "minimax":
        return _without_rates(checkpoint)
    if kind == "qwen4_exp_text":
        return _without_hashes(checkpoint)
    if kind == "olmo_hybrid":
        names = checkpoint.names()
        return view_of(checkpoint, dict(_olmo_names(names)))
    return checkpoint


def fading_rates(layer: int, layers: int, heads: int) -> tuple[float, ...]:
    """Return MiniMax's rate of each head: they fall from head to head and from layer to layer."""
    share = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(2 ** (-8 * (head + 1) / heads) * share for head in range(heads))


def _without_rates(checkpoint: Checkpoint) -> Checkpoint:
    names = checkpoint.names()
    for name in names:
        if found := _RATES.fullmatch(name):
            _check_rates(checkpoint, name, int(found[1]))
    return view_of(checkpoint, {name: name for name in names if not name.endswith(_COMPUTED)})


def _check_rates(checkpoint: Checkpoint, name: str, layer: int) -> None:
    layers, stored = checkpoint.config.get("num_hidden_layers"), checkpoint.read(name).reshape(-1)
    wanted = fading_rates(layer, layers, len(stored)) if type(layers) is int else ()
    if len(wanted) != len(stored) or not np.allclose(stored, wanted, rtol=_CLOSE, atol=0):
        raise CheckpointError(
            f"{name} holds other rates than those of layer {layer} of {layers}, which are the only "
            "ones computed here: layers were taken out of this model, or heads"
        )


def _without_hashes(checkpoint: Checkpoint) -> Checkpoint:
    names, given = checkpoint.names(), checkpoint.config.get("ple_layer_ids")
    stored = {name: found for name in names if (found := _HASHES.fullmatch(name))}
    layers = sorted(set(given)) if isinstance(given, list) else []
    tables = ngram_hashes(checkpoint.config, len(layers)) if stored else ()
    for name, found in stored.items():
        layer = int(found[1]) + 1
        table = tables[layers.index(layer)] if layer in layers else None
        if table is None or checkpoint.read(name).tolist() != _stored(table, found[2]):
            raise CheckpointError(
                f"{name} holds other numbers than follow from config.json, which are the only ones "
                "computed here: its seed or a size of its tables of n-grams was changed"
            )
    return view_of(checkpoint, {name: name for name in names if name not in stored})


def _stored(hashes: NGramHashes, part: str) -> list[int]:
    parts = {
        "layer_multipliers": hashes.multipliers,
        "ngram_heads_offsets": hashes.offsets,
        "ngram_heads_vocab_sizes": hashes.sizes,
    }
    return list(parts.get(part, ()))


def _olmo_names(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield published and stored names: attention layers have no feedforward_layer_norm."""
    there = set(names)
    for name in names:
        layer, saved, rest = name.partition(".feedforward_layer_norm.")
        if saved and f"{layer}.self_attn.q_proj.weight" in there:
            yield f"{layer}.post_attention_layernorm.{rest}", name
        else:
            yield name, name
