"""Presents an open checkpoint under other tensor names, or without some of its tensors.

A view of a view starts again from the open checkpoint, so there is at most one view between a
loader and the file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer

_HEADS = ("lm_head.", "embed_out.")


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A `Checkpoint` that lists some tensors of another. Make it with the functions below."""

    opened: Checkpoint  # never itself a view
    stored: Mapping[str, str]  # name -> name in `opened`
    config: dict[str, Any]

    @property
    def format(self) -> str:
        return self.opened.format

    @property
    def folder(self) -> Path | None:
        return self.opened.folder

    @property
    def generation_config(self) -> dict[str, Any]:
        return self.opened.generation_config

    def names(self) -> list[str]:
        return list(self.stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.opened.shape(self._stored(name))

    def dtype(self, name: str) -> str:
        return self.opened.dtype(self._stored(name))

    def nbytes(self, name: str) -> int:
        return self.opened.nbytes(self._stored(name))

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        return self.opened.read(self._stored(name), region, out)

    def packing(self, name: str) -> Packing | None:
        return self.opened.packing(self._stored(name))

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        return self.opened.read_packed(self._stored(name), region)

    def tokenizer(self) -> HfTokenizer:
        return self.opened.tokenizer()

    def chat_template(self) -> ChatTemplate | None:
        return self.opened.chat_template()

    def close(self) -> None:
        self.opened.close()

    def _stored(self, name: str) -> str:
        """Return the name in `opened`, whose error for an unknown name says which file it is."""
        return self.stored.get(name, name)


def view_of(
    checkpoint: Checkpoint, names: Mapping[str, str], config: dict[str, Any] | None = None
) -> CheckpointView:
    """View the tensors of `names` (new name -> name in `checkpoint`), in that order."""
    config = checkpoint.config if config is None else config
    if isinstance(checkpoint, CheckpointView):
        names = {new: checkpoint.stored[name] for new, name in names.items()}
        checkpoint = checkpoint.opened
    return CheckpointView(checkpoint, names, config)


def without_prefixes(checkpoint: Checkpoint, prefixes: tuple[str, ...]) -> Checkpoint:
    return without(checkpoint, {n for n in checkpoint.names() if n.startswith(prefixes)})


def without(checkpoint: Checkpoint, hidden: Collection[str]) -> Checkpoint:
    """Hide these tensors; return the checkpoint itself if there are none."""
    if not hidden:
        return checkpoint
    return view_of(checkpoint, {name: name for name in checkpoint.names() if name not in hidden})


def with_whole_names(checkpoint: Checkpoint, wanted: Collection[str]) -> Checkpoint:
    """Add the prefix of the `wanted` names if the checkpoint's names lack it.

    Checkpoints saved without a head may lack it: the first GPT-2 files say `h.0.ln_1.weight` where
    later ones say `transformer.h.0.ln_1.weight`. Both are read, as in transformers.
    """
    parts = [name.partition(".") for name in wanted if not name.startswith(_HEADS)]
    prefixes, bare = {f"{first}." for first, _, _ in parts}, {rest for _, _, rest in parts}
    there = checkpoint.names()
    if len(prefixes) != 1 or not bare.intersection(there):
        return checkpoint
    prefix = prefixes.pop()
    if any(name.startswith(prefix) for name in there):
        return checkpoint
    return view_of(
        checkpoint, {n if n.startswith(_HEADS) else prefix + n: n for n in checkpoint.names()}
    )
