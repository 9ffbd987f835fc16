"""Opens a GGUF file, or several that hold one model, as a checkpoint.

Reads whole tensors or regions, dequantised or as stored, in the form that the model's authors
published them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from model_server.checkpoints.gguf.config import architecture_of, config_of
from model_server.checkpoints.gguf.matrix import PLAIN, Matrix
from model_server.checkpoints.gguf.parts import open_parts
from model_server.checkpoints.gguf.rope import FACTORS
from model_server.checkpoints.gguf.tensors import views_of
from model_server.checkpoints.gguf.tokenizer import FOR_TOOLS, tokenizer_of
from model_server.checkpoints.gguf.view import GgufView
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, explicit
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_T = TypeVar("_T")


class GgufCheckpoint:
    """An open GGUF file. Reading is thread-safe."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError, naming the file."""
        self.folder: Path | None = None
        self._parts = open_parts(path)
        self._header = self._parts.header
        try:
            self._named(self._prepare)
        except BaseException:
            self._parts.close()
            raise

    def _prepare(self) -> None:
        architecture = architecture_of(self._header)
        factors = {name: self._factors(name) for name in FACTORS if name in self._header.tensors}
        self.config = config_of(self._header, architecture, self._main_dtype(), factors)
        self.generation_config: dict[str, Any] = {}
        self._views = views_of(self._header, architecture, self.config)

    def names(self) -> list[str]:
        return list(self._views)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        return str(self._find(name).dtype)

    def nbytes(self, name: str) -> int:
        view = self._find(name)
        return math.prod(view.shape) * view.dtype.itemsize

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        view = self._find(name)
        return view.read(explicit(region or (), view.shape), out)

    def packing(self, name: str) -> Packing | None:
        return self._find(name).packing()

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        view = self._find(name)
        return self._named(lambda: view.read_packed(explicit(region or (), view.shape)))

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> HfTokenizer:
        return self._named(lambda: tokenizer_of(self._header.metadata))

    def chat_template(self) -> ChatTemplate | None:
        source = self._header.metadata.get("tokenizer.chat_template")
        return None if source is None else self._named(lambda: self._template(source))

    def close(self) -> None:
        self._parts.close()

    def _template(self, source: Any) -> ChatTemplate:
        for_tools = self._header.metadata.get(FOR_TOOLS, "")
        if not isinstance(source, str) or not isinstance(for_tools, str):
            raise CheckpointError("its tokenizer.chat_template is not text")
        tokenizer = self.tokenizer()
        bos, eos = self.config["bos_token_id"], self.config["eos_token_id"]
        return ChatTemplate(
            source,
            "" if bos is None else tokenizer.token_text(bos),
            "" if eos is None else tokenizer.token_text(eos),
            tokenizer.control_tokens.texts,
            for_tools=for_tools,
        )

    def _named(self, work: Callable[[], _T]) -> _T:
        """Add the file's name to errors raised by the pure modules."""
        try:
            return work()
        except CheckpointError as exc:
            if str(self._parts.path) in exc.text:
                raise
            raise CheckpointError(f"{self._parts.path} cannot be loaded: {exc.text}") from exc

    def _factors(self, name: str) -> np.ndarray:
        tensor = self._header.tensors[name]
        if tensor.kind not in PLAIN or len(tensor.shape) != 1:
            raise CheckpointError(f"tensor {name} is not a list of plain numbers")
        (count,) = tensor.shape
        return Matrix(tensor, 1, count).read(slice(0, 1), slice(0, count))[0].astype(np.float32)

    def _main_dtype(self) -> str:
        """Return the dtype of the embedding, which every family has."""
        embedding = self._header.tensors.get("token_embd.weight")
        if embedding is None:
            raise CheckpointError("it has no tensor token_embd.weight")
        return str(PLAIN.get(embedding.kind, np.dtype(np.float32)))

    def _find(self, name: str) -> GgufView:
        try:
            return self._views[name]
        except KeyError:
            raise CheckpointError(f"{self._parts.path} has no tensor {name}") from None
