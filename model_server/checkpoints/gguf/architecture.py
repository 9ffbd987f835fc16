"""Maps one model family between GGUF and Hugging Face, undoing what llama.cpp's converter does.

A family is a declaration (`GgufArchitecture`), used in both directions; the declarations are in
`architectures`. The gguf package's `TensorNameMap` only maps Hugging Face names (up to 38 for one
tensor) to GGUF's: the way back would need a list of names as well, as do row orders and which
layers need a tensor. The tests compare these tables with its names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import head_dim
from sax.errors import CheckpointError

Config = Mapping[str, Any]  # with the keys of config.json


class Permutation(Protocol):
    """A permutation of rows or columns that depends on the configuration."""

    def for_tensor(self, rows: int, config: Config, name: str) -> np.ndarray:
        """Return i64[rows], the row in the file for each row here. Raises CheckpointError."""
        ...


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The permutation of one projection's rows, for any number of heads."""

    heads: str  # config.json key with the number of heads
    parts: int  # projections fused into the tensor: 1, or 3 for q, k and v
    of: Callable[[int, int], np.ndarray]  # (rows, heads) -> order

    def for_tensor(self, rows: int, config: Mapping[str, Any], name: str) -> np.ndarray:
        """Return i64[rows]. Raises CheckpointError if `rows` does not match the heads."""
        heads = config[self.heads]
        wanted = self.parts * heads * head_dim(config)
        if rows != wanted:
            raise CheckpointError(f"tensor {name} has {rows} rows; its heads need {wanted}")
        return self.of(rows, heads)


def halves_of_heads(rows: int, heads: int) -> np.ndarray:
    """Rotary pairs: neighbouring rows in the file, one in each half of a head here."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def heads_of_thirds(rows: int, heads: int) -> np.ndarray:
    """In the file all queries, then all keys, then all values; here q, k, v per head."""
    return np.arange(rows).reshape(3, heads, -1).swapaxes(0, 1).ravel()


def inverse(order: np.ndarray) -> np.ndarray:
    """Return, for each row of the file, the Hugging Face row that it holds."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def rotated(heads: str) -> RowOrder:
    """Llama's queries and keys."""
    return RowOrder(heads, 1, halves_of_heads)


def fused(heads: str) -> RowOrder:
    """GPT-NeoX's query_key_value."""
    return RowOrder(heads, 3, heads_of_thirds)


_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)")
_EXPERT = re.compile(r"\bexperts\.(0|[1-9]\d{0,5})\.")
_PARTS = ("weight", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """The Hugging Face name of one tensor in the file, and how the converter changed its values."""

    # Without .weight or .bias, unless the table's key has it too. A tensor that holds all experts
    # of a layer is named after one of them, with {e} for the expert's number.
    name: str
    order: Permutation | None = None
    columns: Permutation | None = None
    transposed: bool = False  # [in, out] here, [out, in] in the file
    # One per row: [D, 1, K] here, [D, K] or [1, D, 1, K] in the file
    filters: bool = False
    flat: bool = False  # a vector here, whatever its shape in the file
    wrapped: bool = False  # a vector [H] in the file's order, here [1, 1, H, 1]
    plus: float = 0.0  # the converter added this to every value
    times: Callable[[Config, int], float] | None = None  # of a layer: multiplied every value by it
    decay: bool = False  # the file holds -exp(x) for every value x
    # Of a tensor outside the layers in the file: the layer that it is in here, {layer} in the name
    layer: Callable[[Config], int] | None = None
    whole: bool = False  # whole numbers, in the file I32 and here f32
    bare: bool = False  # the name in the file has neither .weight nor .bias
    # Says which layers must have the tensor; called with layer 0 for tensors outside the layers.
    needed: Callable[[Config, int], bool] = lambda config, layer: True

    @property
    def experts(self) -> bool:
        return "{e}" in self.name


def place(name: str, **rest: Any) -> TensorPlace:
    return TensorPlace(name=name, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedPlace:
    """Several tensors of a layer in the file that are one Hugging Face tensor.

    Tensors of all experts, [E, rows, columns], are joined expert by expert.
    """

    name: str  # of that one
    parts: tuple[str, ...]  # stems in the file, with .weight
    # Row of the parts, one after another, for each row here; None: as they are.
    order: Callable[[Config], np.ndarray] | None = None
    transposed: bool = False  # the last two dimensions are swapped here
    needed: Callable[[Config, int], bool] = lambda config, layer: True


@dataclass(frozen=True, slots=True)
class Named:
    gguf_name: str
    hf_name: str  # contains {e} if the file's tensor holds all experts
    place: TensorPlace
    expert: int | None = None


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """The GGUF declaration of one model family."""

    name: str  # general.architecture and the prefix of its metadata
    # Hugging Face model_type -> class; the first one unless more_config returns another.
    model_types: Mapping[str, str]
    tensors: Mapping[str, TensorPlace]  # outside the layers; keys without .weight or .bias
    layer_tensors: Mapping[str, TensorPlace]  # inside a layer
    joined: tuple[JoinedPlace, ...] = ()  # inside a layer
    # Names inside a layer -> the metadata that lists a number for each layer, and their shape.
    listed: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    layers: str = "model.layers"  # Hugging Face prefix of the layers
    keys: tuple[Key, ...]  # config.json keys with a GGUF counterpart
    layer_count: str = "num_hidden_layers"  # config.json key with the number of layers
    # config.json values that GGUF takes for granted; a model with other values cannot be written.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # The remaining config.json keys from the file, and the remaining metadata from config.json.
    more_config: Callable[[Facts, dict[str, Any]], dict[str, Any]]
    more_metadata: Callable[[Config], dict[str, Any]] | None = None  # None: files are only read
    # Rotary factors from config.json, which GGUF stores as tensors.
    factors: Callable[[Config], dict[str, np.ndarray]] = lambda config: {}
    # Normalises Hugging Face names: some checkpoints add a prefix to every name or omit it.
    usual: Callable[[str], str] = str
    # Hugging Face tensors that carry no weights, or none that GGUF has a name for.
    dropped: re.Pattern[str] = re.compile(r"(?!)")
    ignored: tuple[str, ...] = ()  # metadata of this family that changes nothing
    spare_layers: bool = False  # checkpoints may have extra layers used only in training
    split_kv_b: bool = False  # attn_kv_b may be stored as two tensors, attn_k_b and attn_v_b
    # A layer's heads and latent, by the keys of config.json, which those two are cut by.
    latent_sizes: Callable[[Config, int], Config] = lambda config, layer: config
    # The declaration of another family whose files have this name; None: the file is of this one.
    other: Callable[[Mapping[str, Any]], GgufArchitecture | None] = lambda metadata: None

    def from_gguf(self, gguf_name: str) -> Named | None:
        """Look up a GGUF name; None if the family has no such tensor."""
        table, prefix, inside = self.tensors, "", gguf_name
        if match := _BLOCK.fullmatch(gguf_name):
            table, prefix, inside = self.layer_tensors, f"{self.layers}.{match[1]}.", match[2]
        stem, _, part = inside.rpartition(".")
        found = table.get(inside)
        if found and (found.bare or part in _PARTS):
            return Named(gguf_name, prefix + found.name, found)
        if part in _PARTS and (found := table.get(stem)) and not found.bare:
            return Named(gguf_name, f"{prefix}{found.name}.{part}", found)
        return None

    def from_hf(self, hf_name: str) -> Named | None:
        """Look up a Hugging Face name; an expert maps to its layer's stacked tensor."""
        if (plain := _EXPERT.sub("experts.{e}.", hf_name)) != hf_name:
            match = _EXPERT.search(hf_name)
            assert match is not None
            found = self._from_plain_hf(plain)
            return found and Named(found.gguf_name, plain, found.place, int(match[1]))
        return self._from_plain_hf(self.usual(hf_name))

    def drops(self, hf_name: str, config: Config) -> bool:
        """True if a GGUF file of this configuration leaves the tensor out."""
        hf_name = self.usual(hf_name)
        layer = re.match(re.escape(self.layers) + r"\.(\d+)\.", hf_name)
        spare = self.spare_layers and layer and int(layer[1]) >= config[self.layer_count]
        return bool(spare or self.dropped.fullmatch(hf_name))

    def _from_plain_hf(self, hf_name: str) -> Named | None:
        layer = re.fullmatch(re.escape(self.layers) + r"\.(\d+)\.(.+)", hf_name)
        table = self._layer_stems if layer else self._stems
        prefix, rest = (f"blk.{layer[1]}.", layer[2]) if layer else ("", hf_name)
        if found := table.get(rest):
            return Named(prefix + found[0], hf_name, found[1])
        stem, _, part = rest.rpartition(".")
        if part in _PARTS and (found := table.get(stem)):
            return Named(f"{prefix}{found[0]}.{part}", hf_name, found[1])
        return None

    @cached_property
    def _stems(self) -> dict[str, tuple[str, TensorPlace]]:
        return {place.name: (stem, place) for stem, place in self.tensors.items()}

    @cached_property
    def _layer_stems(self) -> dict[str, tuple[str, TensorPlace]]:
        return {place.name: (stem, place) for stem, place in self.layer_tensors.items()}

    def needed(self, config: Config) -> list[str]:
        """Return the GGUF names of all weights that a model of this configuration must have."""
        names = [_whole(stem, at) for stem, at in self.tensors.items() if at.needed(config, 0)]
        for layer in range(config[self.layer_count]):
            names += [
                f"blk.{layer}.{_whole(stem, at)}"
                for stem, at in self.layer_tensors.items()
                if at.needed(config, layer)
            ]
        return names


def _whole(stem: str, at: TensorPlace) -> str:
    return stem if at.bare or stem.endswith(_PARTS) else f"{stem}.weight"


def optional(config: Config, layer: int) -> bool:
    """`TensorPlace.needed` for tensors that only some models of a family have."""
    return False
