"""Opens an Orbax checkpoint (OCDBT or a folder per array) on this machine or in a bucket.

config.json and the tokenizer files are beside the arrays, as in a Hugging Face folder; Pax's need
no config.json. The tree may be in any of `DIALECTS`; tensors are returned under Hugging Face names
and in its layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.files import check_files_below, read_json
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
from model_server.checkpoints.orbax.contents import read_contents
from model_server.checkpoints.orbax.folder import Folder, reason
from model_server.checkpoints.orbax.layout import OrbaxLayout
from model_server.checkpoints.orbax.pax.dialect import PRAXIS
from model_server.checkpoints.orbax.view import OrbaxView
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

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

    def __init__(self, layout: OrbaxLayout) -> None:
        """Raises CheckpointError, naming the file or array, if it cannot be opened."""
        self._arrays_at = layout.arrays
        self._fetched: TemporaryDirectory[str] | None = None
        self._closed = False
        try:
            if layout.arrays.is_local and layout.file is None:
                check_files_below(layout.arrays.path)
            self._folder = self._folder_beside(layout)
            self.folder: Path | None = self._folder
            here = (self._folder / "config.json").exists()
            self._contents = read_contents(layout, read_config(self._folder) if here else None)
            self.config = self._contents.config
            self.generation_config = read_json(self._folder / "generation_config.json", missing={})
        except BaseException:
            self.close()
            raise

    @property
    def format(self) -> str:
        return "pax" if self._contents.dialect is PRAXIS else "orbax"

    def names(self) -> list[str]:
        return list(self._contents.views)

    def shape(self, name: str) -> tuple[int, ...]:
        view = self._find(name)
        return view.shape(tuple(self._contents.arrays[view.path].shape))

    def dtype(self, name: str) -> str:
        view = self._find(name)
        kind = self._contents.arrays[view.path].dtype.name
        if kind not in DTYPES and not (kind == "int8" and self._contents.is_quantized(name)):
            raise CheckpointError(
                f"tensor {name} (array {view.path} in {self._arrays_at.url}) is stored as {kind}; "
                f"supported are {', '.join(DTYPES)}"
            )
        return "float32" if self._contents.in_float32(name) else kind

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
            return self._contents.read(name, region, out)
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

    def _find(self, name: str) -> OrbaxView:
        try:
            return self._contents.views[name]
        except KeyError:
            raise CheckpointError(f"{self._arrays_at.url} has no tensor {name}") from None

    def _folder_beside(self, layout: OrbaxLayout) -> Path:
        """Return a folder on this machine that has config.json, or at least a tokenizer."""
        names = (("config.json",), (*_BESIDE, *BESIDE))
        places = (each for some in names for each in layout.beside if each.has(*some))
        place = next(places, layout.arrays)
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
