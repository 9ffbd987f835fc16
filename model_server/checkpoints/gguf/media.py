"""The encoder of pictures that llama.cpp keeps in a file of its own, mmproj-NAME.gguf.

Its metadata becomes the vision_config of a Hugging Face config.json, and its tensors those of the
family's folder. Raises CheckpointError without the file's name, which the caller adds.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config, halves_of_heads
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor
from model_server.checkpoints.gguf.matrix import Matrix
from model_server.checkpoints.gguf.parts import GgufParts, open_parts
from model_server.checkpoints.gguf.projectors import PROJECTORS, GgufProjector
from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver
from model_server.checkpoints.split_name import mmproj_of
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

_LEAST, _MOST = "vision.image_min_pixels", "vision.image_max_pixels"
# Metadata that repeats the tensors or the projector's kind, or is of no picture's numbers.
_UNUSED = frozenset(
    {
        *("has_vision_encoder", "projector_type", "vision.projector_type", "use_gelu", "use_silu"),
        *("vision.feed_forward_length", "vision.projection_dim"),
    }
)


@dataclass(frozen=True, slots=True)
class MediaView:
    """A tensor of an encoder, made of the file's: read whole, as encoders are small."""

    parts: tuple[GgufTensor, ...]
    frames: bool = False  # the parts are frames of filters, [out, in, frames, rows, columns]
    plus: float = 0.0  # the converter added this to every value
    heads: int = 0  # whose rotary pairs are neighbours in the file; 0: rows are as they are

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        if self.frames:
            return (*first[:2], len(self.parts), *first[2:])
        return (sum(part.shape[0] for part in self.parts), *first[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.plus else _matrix(self.parts[0]).dtype

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        parts = [_numbers(part) for part in self.parts]
        made = np.stack(parts, axis=2) if self.frames else np.concatenate(parts)
        if self.plus:
            made = made.astype(np.float32) - np.float32(self.plus)
        if self.heads:
            made = made[halves_of_heads(len(made), self.heads)]
        return deliver(made[region], out)

    def packing(self) -> Packing | None:
        """None: encoders are computed with plain numbers."""
        return None

    def read_packed(self, region: Region) -> PackedBlocks:
        raise CheckpointError(f"tensor {self.parts[0].name} is read as numbers")


def _matrix(tensor: GgufTensor) -> Matrix:
    *rows, columns = tensor.shape
    return Matrix(tensor, math.prod(rows), columns)


def _numbers(tensor: GgufTensor) -> np.ndarray:
    matrix = _matrix(tensor)
    found = matrix.read(slice(0, matrix.rows), slice(0, matrix.columns))
    return found.reshape(tensor.shape)


def open_media(
    path: Path, config: dict[str, Any], tokens: list[str]
) -> tuple[GgufParts, dict[str, Any], dict[str, MediaView]] | None:
    """Open the encoder's file beside a model's, if there is one that belongs to it.

    Returns the open file, the model's config.json with the encoder's, and the encoder's tensors.
    tokens: of the model. Raises CheckpointError, naming the file.
    """
    if not any(config["model_type"] in each.texts for each in PROJECTORS.values()):
        return None
    name = mmproj_of(path.name, [file.name for file in path.parent.glob("*.gguf")])
    if name is None:
        return None
    opened = open_parts(path.parent / name)
    try:
        found = media_of(opened.header, config, tokens)
    except BaseException as exc:
        opened.close()
        if isinstance(exc, CheckpointError):
            raise CheckpointError(f"{opened.path} cannot be loaded: {exc.text}") from exc
        raise
    if found is None:
        logger.warning("%s is of another model, or of a kind that is not read", opened.path)
        opened.close()
        return None
    return opened, config | found[0], found[1]


def media_of(
    header: GgufHeader, config: dict[str, Any], tokens: list[str]
) -> tuple[dict[str, Any], dict[str, MediaView]] | None:
    """Return what a file adds to the config.json of a text model, and the encoder's tensors.

    None: it is the file of another model, or of a kind that is not read.
    """
    facts = Facts(header, "clip")
    kind = facts.get("vision.projector_type", facts.get("projector_type"))
    projector = PROJECTORS.get(kind) if isinstance(kind, str) else None
    if projector is None or config["model_type"] not in projector.texts:
        return None
    if facts.whole("vision.projection_dim") != config["hidden_size"]:
        return None
    if projector.token not in tokens:
        raise CheckpointError(f"the model has no token {projector.token}, which stands for images")
    sizes = _sizes(facts)
    vision = projector.vision(facts, sizes)
    more = {
        "model_type": projector.texts[config["model_type"]],
        VISION: vision,
        PREPROCESSOR: _preprocessor(facts),
        "image_token_id": tokens.index(projector.token),
        **projector.outer(facts, vision),
    }
    if unread := sorted(facts.unread().keys() - _UNUSED):
        raise CheckpointError(f"its metadata has clip.{unread[0]}, which is not supported")
    return more, _views(header, projector, vision, sizes)


def _sizes(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_size": facts.whole("vision.embedding_length"),
        "image_size": facts.whole("vision.image_size"),
        "num_attention_heads": facts.whole("vision.attention.head_count"),
        "num_hidden_layers": facts.whole("vision.block_count"),
        "patch_size": facts.whole("vision.patch_size"),
        "intermediate_size": _feed_forward(facts),
        "layer_norm_eps": facts.number("vision.attention.layer_norm_epsilon", 1e-6),
    }


def _feed_forward(facts: Facts) -> int:
    """Return it from a tensor: converters wrote other numbers for some families."""
    sides = {"v.blk.0.ffn_up.weight", "v.blk.0.ffn_down.weight"} & facts.tensors.keys()
    shapes = {facts.tensors[name].shape for name in sides}
    embed = facts.whole("vision.embedding_length")
    others = {side for shape in shapes for side in shape} - {embed}
    if len(sides) != 2 or len(others) > 1:
        raise CheckpointError("it has no v.blk.0.ffn_up.weight and ffn_down.weight that fit")
    return others.pop() if others else embed


def _preprocessor(facts: Facts) -> dict[str, Any]:
    """Return what the file says of pictures; families know the rest."""
    made: dict[str, Any] = {
        f"image_{what}": [float(each) for each in facts.listed(f"vision.image_{what}", 3)]
        for what in ("mean", "std")
    }
    if facts.get(_LEAST) is not None and facts.get(_MOST) is not None:
        edges = {"shortest_edge": facts.whole(_LEAST), "longest_edge": facts.whole(_MOST)}
        made["size"] = edges
    return made


def _views(
    header: GgufHeader, projector: GgufProjector, vision: Config, sizes: Config
) -> dict[str, MediaView]:
    left, layers = dict(header.tensors), sizes["num_hidden_layers"]
    if layers > len(left):
        raise CheckpointError(f"it announces {layers} layers, but has {len(left)} tensors")
    _swap_reversed(left, layers, sizes["hidden_size"])
    views: dict[str, MediaView] = {}
    for name, parts, inside in projector.places(layers, vision):
        found = [left.pop(part) for part in parts if part in left]
        if not found:
            continue  # what a model must have is checked against its weights
        if len(found) < len(parts) or len({each.shape[1:] for each in found}) > 1:
            raise CheckpointError(f"{', '.join(parts)} do not make {name}: some are missing")
        views[name] = MediaView(
            tuple(found),
            frames=parts[-1].endswith(".weight.1"),
            plus=1.0 if name in projector.plus_one else 0.0,
            heads=sizes["num_attention_heads"] if inside in projector.rotated else 0,
        )
    if unknown := sorted(left.keys() - set(projector.ignored)):
        raise CheckpointError(f"such encoders have no tensor {unknown[0]!r}")
    return views


def _swap_reversed(tensors: dict[str, GgufTensor], layers: int, embed: int) -> None:
    """Undo that older converters gave both matrices of a feed-forward each other's names."""
    for layer in range(layers):
        up, down = (tensors.get(f"v.blk.{layer}.ffn_{side}.weight") for side in ("up", "down"))
        if up is None or down is None or up.shape[-1] == embed or down.shape[-1] != embed:
            continue
        for end in ("weight", "bias"):
            names = [f"v.blk.{layer}.ffn_{side}.{end}" for side in ("up", "down")]
            if all(name in tensors for name in names):
                tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]
