"""Opens an Orbax checkpoint (OCDBT or a folder per array) on this machine or in a bucket.

config.json and the tokenizer files are beside the arrays, as in a Hugging Face folder. The tree
may be in any of `DIALECTS`; tensors are returned under Hugging Face names and in its layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.huggingface.folder_files import (
    folder_chat_template,
    folder_tokenizer,
    read_config,
)
from model_server.checkpoints.huggingface.sentence_transformers import (
    BESIDE,
    MODULES,
    files_of_modules,
)
from model_server.checkpoints.json_file import read_json
from model_server.checkpoints.orbax.arrays import Tree, open_arrays, read_tree
from model_server.checkpoints.orbax.dialect import EXACT, FLAX, find_dialect, translate
from model_server.checkpoints.orbax.folder import Folder, reason
from model_server.checkpoints.orbax.gemma import GEMMA
from model_server.checkpoints.orbax.layout import OrbaxLayout
from model_server.checkpoints.orbax.maxtext import MAXTEXT
from model_server.checkpoints.orbax.view import OrbaxView
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.checkpoints.regular_file import check_files_below
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

# Tried in order, the most specific marks first.
DIALECTS = (GEMMA, MAXTEXT, FLAX, EXACT)
# Files fetched from a bucket; the arrays stay there.
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tekken.json",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)


class OrbaxCheckpoint:
    """An open Orbax checkpoint. Reading is thread-safe."""

    format = "orbax"

    def __init__(self, layout: OrbaxLayout) -> None:
        """Raises CheckpointError, naming the file or array, if it cannot be opened."""
        self._arrays_at = layout.arrays
        self._fetched: TemporaryDirectory[str] | None = None
        self._closed = False
        try:
            if layout.arrays.is_local:
                check_files_below(layout.arrays.path)
            self._folder = self._folder_with_config(layout)
            self.folder: Path | None = self._folder
            self.config = read_config(self._folder)
            self.generation_config = read_json(self._folder / "generation_config.json", missing={})
            self._views, self._arrays = self._open(read_tree(layout.arrays))
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._views)

    def shape(self, name: str) -> tuple[int, ...]:
        view = self._find(name)
        return view.shape(tuple(self._arrays[view.path].shape))

    def dtype(self, name: str) -> str:
        view = self._find(name)
        kind = self._arrays[view.path].dtype.name
        if kind not in DTYPES:
            raise CheckpointError(
                f"tensor {name} (array {view.path} in {self._arrays_at.url}) is stored as {kind}; "
                f"supported are {', '.join(DTYPES)}"
            )
        return kind

    def nbytes(self, name: str) -> int:
        return math.prod(self.shape(name)) * DTYPES[self.dtype(name)].itemsize

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Read a tensor or a region of it; only the chunks that the region touches are read."""
        view = self._find(name)
        self.dtype(name)
        if self._closed:
            raise CheckpointError(f"{self._arrays_at.url} cannot be read: it is closed")
        try:
            return view.read(self._arrays[view.path], region, out)
        except (ValueError, OSError) as exc:
            raise CheckpointError(
                f"tensor {name} (array {view.path} in {self._arrays_at.url}) cannot be read: it "
                f"is missing, truncated or damaged ({reason(exc)}); fetch it again"
            ) from exc

    def packing(self, name: str) -> Packing | None:
        """Always None: Orbax arrays hold plain numbers."""
        return None

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        raise CheckpointError(f"tensor {name} in {self._arrays_at.url} is not quantised")

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> HfTokenizer:
        return folder_tokenizer(self._folder, self.config)

    def chat_template(self) -> ChatTemplate | None:
        return folder_chat_template(self._folder, self.tokenizer())

    def close(self) -> None:
        self._closed = True
        if self._fetched is not None:
            self._fetched.cleanup()

    def _open(self, tree: Tree) -> tuple[dict[str, OrbaxView], dict[str, Any]]:
        weights = _weights(tree.arrays)
        dialect = find_dialect(DIALECTS, weights)
        if dialect is None:
            some = ", ".join(list(weights)[:3]) or "nothing"
            known = "; ".join(dialect.name for dialect in DIALECTS)
            raise CheckpointError(
                f"{self._arrays_at.url} has an unknown layout of weights: it holds {some}. "
                f"Known are {known}"
            )
        opened = open_arrays(tree, weights.values())
        arrays = {short: opened[path] for short, path in weights.items()}
        shapes = {path: tuple(array.shape) for path, array in arrays.items()}
        try:
            return translate(dialect, self.config, shapes), arrays
        except CheckpointError as exc:
            raise CheckpointError(f"{self._arrays_at.url}: {exc.text}") from exc

    def _find(self, name: str) -> OrbaxView:
        try:
            return self._views[name]
        except KeyError:
            raise CheckpointError(f"{self._arrays_at.url} has no tensor {name}") from None

    def _folder_with_config(self, layout: OrbaxLayout) -> Path:
        place = next((folder for folder in layout.beside if folder.has("config.json")), None)
        if place is None:
            raise CheckpointError(
                f"{layout.arrays.url} holds Orbax arrays but no config.json: put the model's "
                "config.json and tokenizer files beside them"
            )
        return place.path if place.is_local else self._fetch(place)

    def _fetch(self, place: Folder) -> Path:
        self._fetched = TemporaryDirectory(prefix="sax-orbax-")
        folder = Path(self._fetched.name)
        _write(folder, place.read_all((*_BESIDE, *BESIDE)))
        if (folder / MODULES).exists():
            _write(folder, place.read_all(tuple(files_of_modules(folder))))
        return folder


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _weights(paths: Iterable[str]) -> dict[str, str]:
    """Return the weights of a training state: short path -> path, without common prefixes."""
    found = {path: path for path in paths}
    while inner := {
        short.removeprefix("params/"): path
        for short, path in found.items()
        if short.startswith("params/")
    }:
        found = inner
    # nnx saves every variable as an object with the single field `value`.
    if found and all(short.endswith("/value") for short in found):
        found = {short.removesuffix("/value"): path for short, path in found.items()}
    return found
