"""Opens a GGUF file, or several that hold one model, as a checkpoint.

Reads whole tensors or regions, dequantised or as stored, in the form that the model's authors
published them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, Named
from model_server.checkpoints.gguf.config import architecture_of, config_of, drafting_layers
from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor
from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.gguf.media import open_media
from model_server.checkpoints.gguf.parts import GgufParts, open_parts
from model_server.checkpoints.gguf.rope import FACTORS
from model_server.checkpoints.gguf.tokenizer import FOR_TOOLS, tokenizer_of
from model_server.checkpoints.gguf.view import (
    PLAIN,
    WHOLE,
    GgufView,
    ListedView,
    Matrix,
    SplitView,
    StoredView,
    joined_view,
)
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, explicit
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_SPLIT = re.compile(r"(blk\.\d+\.attn_)(k|v)_b\.weight")
_Parts = dict[str, GgufTensor]  # "k" and "v"

_T = TypeVar("_T")


class GgufCheckpoint:
    """An open GGUF file. Reading is thread-safe."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError, naming the file."""
        self.folder: Path | None = None
        self._parts = open_parts(path)
        self._header = self._parts.header
        self._media: GgufParts | None = None
        try:
            self._named(self._prepare)
            self._add_media(path)
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        architecture = architecture_of(self._header)
        factors = {name: self._factors(name) for name in FACTORS if name in self._header.tensors}
        self.config = config_of(self._header, architecture, self._main_dtype(), factors)
        self.generation_config: dict[str, Any] = {}
        self._views: dict[str, GgufView] = views_of(self._header, architecture, self.config)

    def _add_media(self, path: Path) -> None:
        """Add the tensors and sizes of the encoder in the file beside this one, if there is one."""
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        found = open_media(path, self.config, tokens) if isinstance(tokens, list) else None
        if found is not None:
            self._media, self.config, views = found
            self._views |= views

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
        for opened in (self._parts, self._media):
            if opened is not None:
                opened.close()

    def _template(self, source: Any) -> ChatTemplate:
        for_tools = self._header.metadata.get(FOR_TOOLS, "")
        if not isinstance(source, str) or not isinstance(for_tools, str):
            raise CheckpointError("its tokenizer.chat_template is not text")
        tokenizer = self.tokenizer()
        bos, eos = self.config["bos_token_id"], self.config["eos_token_id"]
        eos = eos[-1] if isinstance(eos, list) else eos
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


# Lists the tensors of a GGUF file by Hugging Face name, checked against the configuration.
#
# `view` reads one of them. Raises CheckpointError without the file's name, which the caller adds.


def views_of(
    header: GgufHeader, architecture: GgufArchitecture, config: Config
) -> dict[str, GgufView]:
    """Return views by Hugging Face name, in file order."""
    _check_kinds(header, architecture)
    layers = config[architecture.layer_count]
    spare = range(layers, layers + drafting_layers(header, architecture))
    tensors = {
        name: tensor
        for name, tensor in header.tensors.items()
        if name not in FACTORS and _block(name) not in spare
    }
    split = _take_split(tensors) if architecture.split_kv_b else {}
    views: dict[str, GgufView] = _joined(tensors, architecture, config)
    named = {name: _named(architecture, name) for name in (*tensors, *split)}
    _check_complete(named, architecture, config)
    for name, tensor in tensors.items():
        views |= _stored(tensor, named[name], config)
    for name, parts in split.items():
        sizes = architecture.latent_sizes(config, _block(name) or 0)
        views[named[name].hf_name] = _split(name, parts, sizes)
    return views | _listed(header, architecture, layers)


def _listed(header: GgufHeader, architecture: GgufArchitecture, layers: int) -> dict[str, GgufView]:
    """Return the numbers of layers that are lists of the metadata. Raises CheckpointError."""
    views: dict[str, GgufView] = {}
    for name, (key, shape) in architecture.listed.items():
        given = header.metadata.get(key)
        if not isinstance(given, np.ndarray) or len(given) != layers or given.dtype.kind != "f":
            raise CheckpointError(f"its metadata {key} must be a list of {layers} numbers")
        for layer, number in enumerate(given.tolist()):
            views[f"{architecture.layers}.{layer}.{name}"] = ListedView(number, shape)
    return views


def _check_kinds(header: GgufHeader, architecture: GgufArchitecture) -> None:
    for tensor in header.tensors.values():
        named = architecture.from_gguf(tensor.name)
        wanted = WHOLE if named and named.place.whole else (*PLAIN, *KINDS)
        if tensor.kind not in wanted:
            known = ", ".join(kind.name for kind in wanted)
            raise CheckpointError(
                f"tensor {tensor.name} is stored as {tensor.kind.name}; supported are {known}"
            )


def _named(architecture: GgufArchitecture, gguf_name: str) -> Named:
    if found := architecture.from_gguf(gguf_name):
        return found
    raise CheckpointError(f"{architecture.name} models have no tensor {gguf_name!r}")


def _check_complete(
    found: Mapping[str, Named], architecture: GgufArchitecture, config: Config
) -> None:
    """Raise CheckpointError unless every declared layer has all its weights, and no others."""
    layers = config[architecture.layer_count]
    if missing := [name for name in architecture.needed(config) if name not in found]:
        given = architecture.from_gguf(missing[0])
        assert given is not None, "the family's own table names it"
        raise CheckpointError(
            f"{len(missing)} tensors are missing, the first is {missing[0]} ({given.hf_name})"
        )
    for name in found:
        if name.startswith("blk.") and int(name.split(".")[1]) >= layers:
            raise CheckpointError(
                f"it announces {layers} layers, but also has {name} ({found[name].hf_name})"
            )


def _block(name: str) -> int | None:
    found = _BLOCK.match(name)
    return int(found[1]) if found else None


def _joined(
    tensors: dict[str, GgufTensor], architecture: GgufArchitecture, config: Config
) -> dict[str, GgufView]:
    """Move tensors that are one Hugging Face tensor out of `tensors`, by the name of that one."""
    views: dict[str, GgufView] = {}
    for layer in range(config[architecture.layer_count]) if architecture.joined else ():
        for join in architecture.joined:
            parts = [f"blk.{layer}.{part}" for part in join.parts]
            missing = [part for part in parts if part not in tensors]
            whole = f"{architecture.layers}.{layer}.{join.name}"
            if missing and (len(missing) < len(parts) or join.needed(config, layer)):
                raise CheckpointError(f"tensor {missing[0]} is missing, a part of {whole}")
            if not missing:
                views[whole] = joined_view([tensors.pop(part) for part in parts], join, config)
    return views


def _stored(tensor: GgufTensor, named: Named, config: Config) -> dict[str, StoredView]:
    place, shape = named.place, tensor.shape
    if place.flat or place.wrapped:
        shape = (math.prod(shape),)
    if place.filters and len(shape) == 4 and shape[0] == shape[2] == 1:
        shape = (shape[1], shape[3])
    if len(shape) > (3 if place.experts else 2) or (place.experts and len(shape) < 2):
        raise CheckpointError(f"tensor {tensor.name} has the shape {list(shape)}")
    if not place.experts:
        name = named.hf_name
        if place.layer is not None:
            name = name.replace("{layer}", str(place.layer(config)))
        return {name: _view(Matrix(tensor, *_sides(shape)), shape, named, config)}
    experts, *one = shape
    rows, columns = _sides(tuple(one))
    return {
        named.hf_name.replace("{e}", str(expert)): _view(
            Matrix(tensor, rows, columns, expert * rows), tuple(one), named, config
        )
        for expert in range(experts)
    }


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, columns); a vector is one row."""
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def _view(matrix: Matrix, shape: tuple[int, ...], named: Named, config: Config) -> StoredView:
    place, order = named.place, None
    if place.order is not None:
        order = place.order.for_tensor(shape[0], config, matrix.tensor.name)
    if place.transposed and len(shape) == 2:
        shape = shape[::-1]
    if place.filters and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    if place.wrapped:
        shape = (1, 1, *shape, 1)
    columns = None
    if place.columns is not None:
        columns = place.columns.for_tensor(shape[-1], config, matrix.tensor.name)
    times = place.times(config, _block(named.gguf_name) or 0) if place.times else 1.0
    return StoredView(matrix, shape, place, order, columns, times)


# --- attn_kv_b as two tensors -------------------------------------------------------------------


def _take_split(tensors: dict[str, GgufTensor]) -> dict[str, _Parts]:
    """Move attn_k_b and attn_v_b out of `tensors`, keyed by the attn_kv_b they make up."""
    split: dict[str, _Parts] = {}
    for name in list(tensors):
        if match := _SPLIT.fullmatch(name):
            tensor, whole = tensors.pop(name), f"{match[1]}kv_b.weight"
            if whole not in tensors:  # some files hold both forms
                split.setdefault(whole, {})[match[2]] = tensor
    return split


def _split(name: str, parts: _Parts, sizes: Config) -> SplitView:
    heads, latent = sizes["num_attention_heads"], sizes["kv_lora_rank"]
    wanted = {
        "k": (heads, latent, sizes["qk_nope_head_dim"]),
        "v": (heads, sizes["v_head_dim"], latent),
    }
    for part, shape in wanted.items():
        tensor = parts.get(part)
        if tensor is None or tensor.shape != shape:
            given = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            part_name = name.replace("kv_b", f"{part}_b")
            raise CheckpointError(
                f"tensor {part_name} must be of shape {list(shape)}; it is {given}"
            )
    keys, values = (
        tuple(Matrix(parts[part], rows, columns, head * rows) for head in range(count))
        for part, (count, rows, columns) in wanted.items()
    )
    return SplitView(keys, values)
