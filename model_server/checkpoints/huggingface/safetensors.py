"""Opens a Hugging Face folder as a checkpoint.

Expects config.json, model.safetensors or its shards, and tokenizer files. Reads tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.files import read_json
from model_server.checkpoints.huggingface.folder_files import (
    folder_chat_template,
    folder_tokenizer,
    read_config,
)
from model_server.checkpoints.huggingface.prequantized.methods import packed_weights
from model_server.checkpoints.huggingface.safetensors_header import (
    DTYPES,
    ErrorHandler,
    raise_error,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver, whole
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

# Integer and mask buffers that old exporters saved although the configuration implies them.
_COUNTED = ("position_ids", ".attn.bias", ".attention.bias")
# The first releases of compressed-tensors called it the latter.
_QUANTISED = ("quantization_config", "compression_config")
# Whole numbers: of a draft head, which float32 holds as they are, and what tables of n-grams are
# read by, which is compared as it is stored (see as_published.py).
_WHOLE = ("d2t", "layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")


class SafetensorsCheckpoint:
    """An open Hugging Face folder. Reading is thread-safe."""

    format = "safetensors"

    def __init__(self, folder: Path, on_error: ErrorHandler = raise_error) -> None:
        """Passes each broken weight file to `on_error`; raises CheckpointError for other files."""
        self.folder: Path | None = folder
        self._folder = folder
        self.config = read_config(folder)
        self.generation_config = read_json(folder / "generation_config.json", missing={})
        self._stored = StoredTensors(folder, on_error)
        try:
            self._packed, used = packed_weights(
                _quantization(folder, self.config), self._stored.dtypes, self._stored
            )
        except CheckpointError as exc:
            self.close()
            raise CheckpointError(f"{folder} cannot be read: {exc.text}") from exc
        plain = [
            name
            for name, dtype in self._stored.dtypes.items()
            if name not in used and (dtype in DTYPES or not name.endswith(_COUNTED))
        ]
        self._names = [*plain, *self._packed]

    def names(self) -> list[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        packed = self._packed.get(name)
        return packed.shape if packed else self._stored.shape(name)

    def dtype(self, name: str) -> str:
        if name in self._packed:
            return "float32"
        tensor = self._stored.find(name)
        if name.rpartition(".")[2] in _WHOLE:
            return "float32"
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"tensor {name} in {tensor.file.path} is stored as {tensor.dtype}; "
                f"supported are {', '.join(DTYPES)}"
            )
        return "float32" if tensor.dtype == "F64" else str(DTYPES[tensor.dtype])

    def nbytes(self, name: str) -> int:
        packed = self._packed.get(name)
        return 4 * math.prod(packed.shape) if packed else self._stored.nbytes(name)

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        packed = self._packed.get(name)
        if packed is None:
            self.dtype(name)  # raises for integer tensors
            found = self._stored.read(name, region, out)
            return found.astype(np.float32) if found.dtype == np.float64 else found
        *rows, columns = region or whole(packed.shape)
        step = packed.step
        start, stop = columns.start // step * step, -(-columns.stop // step) * step
        blocks = packed.read(self._stored, *rows, slice(start, stop))
        cut = slice(columns.start - start, columns.stop - start)
        return deliver(blocks.dequantized()[..., cut], out)

    def packing(self, name: str) -> Packing | None:
        packed = self._packed.get(name)
        return packed and packed.packing

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        packed = self._packed.get(name)
        if packed is None or packed.packing is None:
            raise CheckpointError(f"tensor {name} in {self._folder} is not stored in blocks")
        return packed.read(self._stored, *(region or whole(packed.shape)))

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> HfTokenizer:
        return folder_tokenizer(self._folder, self.config)

    def chat_template(self) -> ChatTemplate | None:
        return folder_chat_template(self._folder, self.tokenizer())

    def close(self) -> None:
        self._stored.close()


def _quantization(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how the weights are quantised, wherever the folder says it."""
    inner = config.get("text_config")
    places = (config, inner) if isinstance(inner, Mapping) else (config,)
    given = (each.get(key) for each in places for key in _QUANTISED)
    found = next((each for each in given if each is not None), None)
    if found is None:
        found = read_json(folder / "hf_quant_config.json", missing={})
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json has quantization_config = {str(found)[:200]!r}")
    return found
