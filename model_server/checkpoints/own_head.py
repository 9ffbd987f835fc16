"""Tells whether a model has an output head of its own, where config.json and the tensors differ.

A head that is tied to the embedding may be stored, too. As in transformers 5, one with other
numbers is the model's, whatever config.json says; and where only the head is stored it is the
embedding.
"""

from __future__ import annotations

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from sax.errors import CheckpointError

_TABLES = {
    "lm_head.weight": (
        "model.embed_tokens.weight",
        "backbone.embeddings.weight",
        "transformer.wte.weight",
        "wte.weight",
    ),
    "embed_out.weight": ("gpt_neox.embed_in.weight",),
    "proj_out.weight": ("model.decoder.embed_tokens.weight",),  # Whisper's
}
_TIED = ("tie_embedding", "tie_word_embeddings")  # by the first, if both are there
_PIECE = 1 << 24  # numbers that are compared together


def with_own_head(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; its config says that a head is not tied if its numbers differ.

    Saxml's classes say by themselves what is tied.
    """
    names, config = checkpoint.names(), checkpoint.config
    head = next((name for name in names if name in _TABLES), None)
    key = next((key for key in _TIED if config.get(key) is not None), _TIED[-1])
    if head is None or config.get(key) is False or checkpoint.format == "pax":
        return checkpoint
    table = next((name for name in names if name in _TABLES[head]), None)
    if table is None:
        return _as_table(checkpoint, head) if config.get(key) else checkpoint
    if _are_equal(checkpoint, head, table):
        return checkpoint
    own = {key: False for key in (*_TIED[:1], key) if key in config} or {_TIED[-1]: False}
    return view_of(checkpoint, {name: name for name in names}, config | own)


def _as_table(checkpoint: Checkpoint, head: str) -> Checkpoint:
    """Return the checkpoint with its head as the embedding of the model that its names tell."""
    names = checkpoint.names()
    roots = {name.partition(".")[0] for name in names}
    table = next((name for name in _TABLES[head] if name.partition(".")[0] in roots), None)
    if table is None:
        return checkpoint
    return view_of(checkpoint, {table if name == head else name: name for name in names})


def _are_equal(checkpoint: Checkpoint, head: str, table: str) -> bool:
    """Compare two tensors piece by piece; what cannot be read is left for the load to refuse."""
    shape = checkpoint.shape(head)
    if shape != checkpoint.shape(table):
        return False
    step = max(1, _PIECE // max(1, *shape[1:]))
    try:
        return all(
            np.array_equal(
                checkpoint.read(head, (rows, *map(slice, shape[1:]))),
                checkpoint.read(table, (rows, *map(slice, shape[1:]))),
            )
            for rows in (slice(at, min(at + step, shape[0])) for at in range(0, shape[0], step))
        )
    except CheckpointError:
        return True
