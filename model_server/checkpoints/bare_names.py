"""Adds the model prefix to tensor names of checkpoints that were saved without a head.

The first GPT-2 files say `h.0.ln_1.weight` where later ones say `transformer.h.0.ln_1.weight`.
Both are read, as in transformers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region

_HEADS = ("lm_head.", "embed_out.")


def with_whole_names(checkpoint: Checkpoint, wanted: Collection[str]) -> Checkpoint:
    """Return the checkpoint, with the prefix of `wanted` added to its names if they lack it."""
    parts = [name.partition(".") for name in wanted if not name.startswith(_HEADS)]
    prefixes, bare = {f"{first}." for first, _, _ in parts}, {rest for _, _, rest in parts}
    there = checkpoint.names()
    if len(prefixes) != 1 or not bare.intersection(there):
        return checkpoint
    prefix = prefixes.pop()
    if any(name.startswith(prefix) for name in there):
        return checkpoint
    renamed: Any = _Renamed(checkpoint, prefix)
    return renamed


class _Renamed:
    """A checkpoint that adds a prefix to all stored names except those of heads."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        self._checkpoint = checkpoint
        self._stored = {
            name if name.startswith(_HEADS) else prefix + name: name for name in checkpoint.names()
        }

    def names(self) -> list[str]:
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(self._stored[name])

    def read(self, name: str, region: Region | None = None, out: Any = None) -> Any:
        return self._checkpoint.read(self._stored[name], region, out)

    def dtype(self, name: str) -> str:
        return self._checkpoint.dtype(self._stored[name])

    def nbytes(self, name: str) -> int:
        return self._checkpoint.nbytes(self._stored[name])

    def packing(self, name: str) -> Packing | None:
        return self._checkpoint.packing(self._stored[name])

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        return self._checkpoint.read_packed(self._stored[name], region)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)
