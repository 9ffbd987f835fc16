"""The encoders of pictures and sounds in llama.cpp's file for them, mmproj-NAME.gguf.

Its metadata becomes the vision_config and audio_config of a Hugging Face config.json, and its
tensors those of the family's folder. Raises CheckpointError without the file's name, which the
caller adds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor
from model_server.checkpoints.gguf.parts import GgufParts, open_parts
from model_server.checkpoints.gguf.projectors import PROJECTORS
from model_server.checkpoints.gguf.projectors.projector import (
    FRAMES,
    HEARING,
    SEEING,
    GgufProjector,
    Undo,
)
from model_server.checkpoints.gguf.view import Matrix
from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver
from model_server.checkpoints.split_name import mmproj_of
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

_LEAST, _MOST = "vision.image_min_pixels", "vision.image_max_pixels"
_TEXT_TYPE = "text_model_type"  # of a text model that another family takes
_OF_SIDE = {SEEING: ("v.", "mm."), HEARING: ("a.", "mm.a.")}  # beginnings of tensors' names
# Metadata that repeats the tensors or the projector's kind, or is of no picture's numbers.
_UNUSED = frozenset(
    {
        *("projector_type", "use_gelu", "use_silu"),
        *(f"has_{side}_encoder" for side in _OF_SIDE),
        *(
            f"{side}.{key}"
            for side in _OF_SIDE
            for key in ("projector_type", "feed_forward_length", "projection_dim")
        ),
    }
)


@dataclass(frozen=True, slots=True)
class MediaView:
    """A tensor of an encoder, made of the file's: read whole, as encoders are small."""

    parts: tuple[GgufTensor, ...]
    sizes: Config  # of the encoder
    undo: Undo | None = None  # what the converter did to the numbers
    at: int | None = None  # which of a stack; None: there is none

    @property
    def shape(self) -> tuple[int, ...]:
        if self.undo is not None:
            return self.undo(np.zeros(self._joined_shape, np.float32), self.sizes).shape
        return self._joined_shape

    @property
    def _joined_shape(self) -> tuple[int, ...]:
        shapes = [part.shape[self.at is not None :] for part in self.parts]
        if self._frames:
            return (*shapes[0][:2], len(shapes), *shapes[0][2:])
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    @property
    def _frames(self) -> bool:
        """True if the parts are frames of filters, [out, in, frames, rows, columns]."""
        return self.parts[-1].name == FRAMES[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return _matrix(self.parts[0]).dtype if self.undo is None else np.dtype(np.float32)

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        parts = [_numbers(part, self.at) for part in self.parts]
        made = np.stack(parts, axis=2) if self._frames else np.concatenate(parts)
        if self.undo is not None:
            made = self.undo(made.astype(np.float32), self.sizes)
        return deliver(made[region], out)

    def packing(self) -> Packing | None:
        """None: encoders are computed with plain numbers."""
        return None

    def read_packed(self, region: Region) -> PackedBlocks:
        raise CheckpointError(f"tensor {self.parts[0].name} is read as numbers")


def _matrix(tensor: GgufTensor) -> Matrix:
    *rows, columns = tensor.shape
    return Matrix(tensor, math.prod(rows), columns)


def _numbers(tensor: GgufTensor, at: int | None) -> np.ndarray:
    """Return a tensor, or one of a stack."""
    matrix = _matrix(tensor)
    shape = tensor.shape if at is None else tensor.shape[1:]
    rows = math.prod(shape[:-1])
    first = rows * (at or 0)
    return matrix.read(slice(first, first + rows), slice(0, matrix.columns)).reshape(shape)


def open_media(
    path: Path, config: dict[str, Any], tokens: list[str]
) -> tuple[GgufParts, dict[str, Any], dict[str, MediaView]] | None:
    """Open the encoder's file beside a model's, if there is one that belongs to it.

    Returns the open file, the model's config.json with the encoder's, and the encoder's tensors.
    tokens: of the model. Raises CheckpointError, naming the file.
    """
    if not any(config["model_type"] in each.texts for kind in PROJECTORS.values() for each in kind):
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
    """Return what a file adds to the config.json of a text model, and the encoders' tensors.

    None: it is the file of another model, or all of its encoders are of kinds that are not read.
    """
    facts = Facts(header, "clip")
    projectors = [each for side in _OF_SIDE if (each := _projector(facts, side, config, tokens))]
    if not projectors:
        return None
    left, unread = dict(header.tensors), _unread_sides(facts, projectors)
    more: dict[str, Any] = {}
    views: dict[str, MediaView] = {}
    for projector in projectors:
        ids = {key: tokens.index(text) for key, text in projector.tokens.items()}
        added, found = _encoder(facts, projector, config, ids, left)
        more |= added | ids
        views |= found
    ignored = {name for each in projectors for name in each.ignored}
    skipped = tuple(start for side in unread for start in _OF_SIDE[side])
    if unknown := sorted(n for n in left.keys() - ignored if not n.startswith(skipped)):
        raise CheckpointError(f"such encoders have no tensor {unknown[0]!r}")
    known = _UNUSED.union(*(each.unused for each in projectors))
    sides = tuple(f"{side}." for side in unread)
    if keys := sorted(n for n in facts.unread().keys() - known if not n.startswith(sides)):
        raise CheckpointError(f"its metadata has clip.{keys[0]}, which is not supported")
    return more, views


def _kind(facts: Facts, side: str) -> str | None:
    """Return the projector of pictures or of sounds; None: the file has none."""
    usual = side == SEEING and not facts.flag(f"has_{HEARING}_encoder", False)
    if not facts.flag(f"has_{side}_encoder", usual):
        return None
    kind = facts.get(f"{side}.projector_type", facts.get("projector_type"))
    return kind if isinstance(kind, str) else None


def _projector(facts: Facts, side: str, config: Config, tokens: list[str]) -> GgufProjector | None:
    kind, text = _kind(facts, side), config["model_type"]
    fitting = (
        each
        for each in PROJECTORS.get(kind or "", ())
        if each.side == side and text in each.texts and each.fits(facts)
    )
    found = next(fitting, None)
    if found is None or facts.whole(f"{side}.projection_dim") != config["hidden_size"]:
        return None
    if missing := [text for text in found.tokens.values() if text not in tokens]:
        raise CheckpointError(
            f"the model has no token {missing[0]}, which stands for what such an encoder makes, or "
            "around it: to serve it as text, move the encoder's file to another folder"
        )
    return found


def _unread_sides(facts: Facts, projectors: list[GgufProjector]) -> list[str]:
    """Return the sides of which the file has an encoder that is not read, and tell the log."""
    taken = {each.side for each in projectors}
    unread = [side for side in _OF_SIDE if side not in taken and _kind(facts, side)]
    for side in unread:
        kind = _kind(facts, side)
        logger.warning("encoders of the kind %s are not read: the model takes no %s", kind, side)
    return unread


def _encoder(
    facts: Facts,
    projector: GgufProjector,
    config: Config,
    ids: dict[str, int],
    left: dict[str, GgufTensor],
) -> tuple[dict[str, Any], dict[str, MediaView]]:
    """Return what an encoder adds to config.json, and its tensors, which are taken from `left`.

    ids: of its tokens, by key of config.json.
    """
    sizes = _sizes(facts, projector) | {key: ids[key] for key in projector.around_token}
    encoder = projector.encoder(facts, sizes)
    text = config["model_type"]
    more = {
        "model_type": projector.texts[text],
        projector.part: encoder,
        **({_TEXT_TYPE: text} if projector.around else {}),
        **_pictures(facts, projector, {**sizes, **encoder}),
        **projector.outer(facts, encoder),
    }
    return more, _views(left, projector, encoder, sizes)


def _sizes(facts: Facts, projector: GgufProjector) -> dict[str, Any]:
    side = projector.side
    pictures = ("image_size", "patch_size") if side == SEEING else ()
    embed = facts.whole(f"{side}.embedding_length")
    layers, count = facts.whole(f"{side}.block_count"), len(facts.tensors)
    if projector.layers and layers > count:  # before anything is listed for each
        raise CheckpointError(f"it announces {layers} layers, but has {count} tensors")
    return {
        "hidden_size": embed,
        "num_attention_heads": facts.whole(f"{side}.attention.head_count"),
        "num_hidden_layers": layers,
        **(
            {"intermediate_size": _feed_forward(facts, projector.prefix, embed)}
            if projector.layers
            else {}
        ),
        "layer_norm_eps": facts.number(f"{side}.attention.layer_norm_epsilon", 1e-6),
        **{key: 0 if _any(facts, key) else facts.whole(f"{side}.{key}") for key in pictures},
    }


def _any(facts: Facts, key: str) -> bool:
    """Return True for a size of 0: pictures may have any."""
    return key == "image_size" and facts.get(f"{SEEING}.{key}") == 0


def _feed_forward(facts: Facts, prefix: str, embed: int) -> int:
    """Return it from a tensor: converters wrote other numbers for some families."""
    names = [f"{prefix}.0.ffn_{side}.weight" for side in ("up", "down")]
    sides = set(names) & facts.tensors.keys()
    shapes = {facts.tensors[name].shape for name in sides}
    others = {side for shape in shapes for side in shape} - {embed}
    if len(sides) != 2 or len(others) > 1:
        raise CheckpointError(f"it has no {names[0]} and ffn_down.weight that fit")
    return others.pop() if others else embed


def _pictures(facts: Facts, projector: GgufProjector, sizes: Config) -> dict[str, Any]:
    if projector.side != SEEING:
        return {}
    return {PREPROCESSOR: projector.pictures(_preprocessor(facts), sizes)}


def _preprocessor(facts: Facts) -> dict[str, Any]:
    """Return what the file says of pictures; families know the rest."""
    made: dict[str, Any] = {
        f"image_{what}": [float(each) for each in facts.listed(f"vision.image_{what}", 3)]
        for what in ("mean", "std")
    }
    if facts.get(_LEAST) is not None and facts.get(_MOST) is not None:
        edges = {"shortest_edge": facts.whole(_LEAST), "longest_edge": facts.whole(_MOST)}
        made["size"] = edges
    if (longest := facts.get("vision.preproc_image_size")) is not None:
        made["max_image_size"] = longest
    return made


def _views(
    left: dict[str, GgufTensor], projector: GgufProjector, encoder: Config, sizes: Config
) -> dict[str, MediaView]:
    """Take an encoder's tensors from `left`."""
    layers = sizes["num_hidden_layers"] if projector.layers else 0
    _respell(left, projector.spellings)
    _swap_reversed(left, projector.prefix, layers, sizes["hidden_size"])
    views: dict[str, MediaView] = {}
    taken = set[str]()  # one may be a part of several
    for name, parts, key, at in projector.places(layers, encoder, left.keys()):
        found = [left[part] for part in parts if part in left]
        if not found:
            continue  # what a model must have is checked against its weights
        if len(found) < len(parts) or len({each.shape[1:] for each in found}) > 1:
            raise CheckpointError(f"{', '.join(parts)} do not make {name}: some are missing")
        undo = projector.undone.get(key)
        views[name] = MediaView(tuple(found), {**sizes, **encoder}, undo, at)
        taken.update(parts)
    for name in taken:
        del left[name]
    return views


def _respell(tensors: dict[str, GgufTensor], spellings: Mapping[str, str]) -> None:
    """Give tensors the names of the tables, where converters wrote several."""
    for other, own in spellings.items():
        for name in [name for name in tensors if other in name]:
            tensors[name.replace(other, own)] = tensors.pop(name)


def _swap_reversed(tensors: dict[str, GgufTensor], prefix: str, layers: int, embed: int) -> None:
    """Undo that older converters gave both matrices of a feed-forward each other's names."""
    for layer in range(layers):
        up, down = (tensors.get(f"{prefix}.{layer}.ffn_{side}.weight") for side in ("up", "down"))
        if up is None or down is None or up.shape[-1] == embed or down.shape[-1] != embed:
            continue
        for end in ("weight", "bias"):
            names = [f"{prefix}.{layer}.ffn_{side}.{end}" for side in ("up", "down")]
            if all(name in tensors for name in names):
                tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]
