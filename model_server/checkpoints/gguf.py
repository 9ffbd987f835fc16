"""A GGUF file as a checkpoint.

Reads tensor by tensor and dequantises with the `gguf` package. Undoes what llama.cpp does to the
rows of rotated projections, so that tensors come out as the model's makers published them.
Knows the file; names and metadata are translated by its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from model_server.chat_template import ChatTemplate
from model_server.checkpoints.gguf_architecture import Architecture
from model_server.checkpoints.gguf_config import ROPE_FACTORS, architecture_of, config_of
from model_server.checkpoints.gguf_header import GgufHeader, GgufTensor, read_header
from model_server.checkpoints.gguf_tokenizer import tokenizer_of
from model_server.checkpoints.tensor_file import TensorFile
from model_server.tokenizer import HfTokenizer
from sax.errors import CheckpointError

# Kinds that are numbers already; every other kind is dequantised to float32.
_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
_T = TypeVar("_T")


class GgufCheckpoint:
    """An open GGUF file. Reading is thread-safe."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError, naming the file."""
        self._file = TensorFile(path)
        try:
            self._header = read_header(self._file)
            self._named(self._prepare)
        except BaseException:
            self._file.close()
            raise

    def _prepare(self) -> None:
        architecture = architecture_of(self._header)
        _check_kinds(self._header)
        dtype = str(_dtype(self._tensor("token_embd.weight")))
        self._architecture = architecture
        self.config = config_of(self._header, architecture, dtype, self._rope_factors())
        self.generation_config: dict[str, Any] = {}
        self._tensors = _by_hf_name(self._header, architecture, self.config["num_hidden_layers"])
        _check_interleaved(self._tensors, architecture, self.config)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        return str(_dtype(self._find(name)))

    def nbytes(self, name: str) -> int:
        tensor = self._find(name)
        return math.prod(tensor.shape) * _dtype(tensor).itemsize

    def read(self, name: str) -> np.ndarray:
        """One tensor, dequantised, in Hugging Face's layout."""
        values = self._values(self._find(name))
        heads_key = self._architecture.heads_key(name)
        return values if heads_key is None else halves_of_heads(values, self.config[heads_key])

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> HfTokenizer:
        return self._named(lambda: tokenizer_of(self._header.metadata))

    def chat_template(self) -> ChatTemplate | None:
        source = self._header.metadata.get("tokenizer.chat_template")
        return None if source is None else self._named(lambda: self._template(source))

    def close(self) -> None:
        self._file.close()

    def _template(self, source: Any) -> ChatTemplate:
        if not isinstance(source, str):
            raise CheckpointError("its tokenizer.chat_template is not text")
        tokenizer = self.tokenizer()
        bos, eos = self.config["bos_token_id"], self.config["eos_token_id"]
        return ChatTemplate(
            source,
            "" if bos is None else tokenizer.token_text(bos),
            "" if eos is None else tokenizer.token_text(eos),
            tokenizer.control_tokens.texts,
        )

    def _named(self, work: Callable[[], _T]) -> _T:
        """Puts the file's name before what the pure parts complain of."""
        try:
            return work()
        except CheckpointError as exc:
            if str(self._file.path) in exc.text:
                raise
            raise CheckpointError(f"{self._file.path} cannot be loaded: {exc.text}") from exc

    def _rope_factors(self) -> np.ndarray | None:
        if ROPE_FACTORS not in self._header.tensors:
            return None
        return self._values(self._tensor(ROPE_FACTORS)).astype(np.float32)

    def _tensor(self, gguf_name: str) -> GgufTensor:
        try:
            return self._header.tensors[gguf_name]
        except KeyError:
            raise CheckpointError(f"it has no tensor {gguf_name}") from None

    def _find(self, name: str) -> GgufTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self._file.path} has no tensor {name}") from None

    def _values(self, tensor: GgufTensor) -> np.ndarray:
        raw = self._file.read(tensor.offset, tensor.nbytes, f"tensor {tensor.name!r}")
        if tensor.kind in _PLAIN:
            return raw.view(_PLAIN[tensor.kind]).reshape(tensor.shape)
        rows = raw.reshape(*tensor.shape[:-1], -1)
        return dequantize(rows, tensor.kind).reshape(tensor.shape)


def halves_of_heads(values: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's rows (pairs that rotate together, neighbours) as Hugging Face's two halves."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def pairs_of_heads(values: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `halves_of_heads`."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _dtype(tensor: GgufTensor) -> np.dtype[Any]:
    return _PLAIN.get(tensor.kind, np.dtype(np.float32))


def _check_kinds(header: GgufHeader) -> None:
    """Try one block of every kind now, not in the middle of a load."""
    for kind, name in {tensor.kind: tensor.name for tensor in header.tensors.values()}.items():
        if kind in _PLAIN:
            continue
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            raise CheckpointError(
                f"tensor {name} is stored as {kind.name}, which cannot be read here"
            ) from None


def _by_hf_name(
    header: GgufHeader, architecture: Architecture, layers: int
) -> dict[str, GgufTensor]:
    named: dict[str, GgufTensor] = {}
    for gguf_name, tensor in header.tensors.items():
        if gguf_name == ROPE_FACTORS:  # already part of the configuration
            continue
        name = architecture.hf_name(gguf_name)
        if name is None:
            raise CheckpointError(f"{architecture.name} models have no tensor {gguf_name!r}")
        named[name] = tensor
    _check_layers(named, architecture, layers)
    return named


def _check_layers(named: dict[str, GgufTensor], architecture: Architecture, layers: int) -> None:
    """As many layers as announced, each with all its weights, and no more."""
    stems = architecture.layer_tensors.values()
    if layers * len(stems) > len(named):
        raise CheckpointError(f"it announces {layers} layers, but has only {len(named)} tensors")
    wanted = {f"model.layers.{n}.{stem}.weight" for n in range(layers) for stem in stems}
    wanted |= {f"{stem}.weight" for stem in architecture.tensors.values()} - {"lm_head.weight"}
    found = {name for name in named if name.endswith(".weight")} - {"lm_head.weight"}
    if missing := sorted(wanted - found):
        raise CheckpointError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    if extra := sorted(found - wanted):
        raise CheckpointError(f"it announces {layers} layers, but also has {extra[0]}")


def _check_interleaved(
    named: dict[str, GgufTensor], architecture: Architecture, config: dict[str, Any]
) -> None:
    for name, tensor in named.items():
        heads_key = architecture.heads_key(name)
        rows = heads_key and config[heads_key] * config["head_dim"]
        if rows and tensor.shape[0] != rows:
            raise CheckpointError(
                f"tensor {tensor.name} has {tensor.shape[0]} rows; its heads make {rows}"
            )
