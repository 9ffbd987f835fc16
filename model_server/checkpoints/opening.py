"""Opens a checkpoint of any format by its path."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np

from model_server.checkpoints.as_published import as_published
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.checkpoints.huggingface.safetensors import SafetensorsCheckpoint
from model_server.checkpoints.huggingface.safetensors_header import ErrorHandler, raise_error
from model_server.checkpoints.huggingface.safetensors_tensors import WEIGHT_FILES
from model_server.checkpoints.orbax.folder import REMOTE, Folder
from model_server.checkpoints.orbax.layout import (
    OrbaxLayout,
    find_layout,
    is_msgpack_map,
    layout_of_file,
)
from model_server.checkpoints.roots import local_place
from model_server.checkpoints.split_name import is_mmproj, whole_name
from model_server.checkpoints.text_part import text_part_of
from sax.errors import CheckpointError

_EITHER_WAY = ("qwen3_5_moe_text", "qwen3_vl_moe_text", "qwen4_exp_text")
_TURNED = ("qwen3_vl_moe_text",)  # as published
_ONE_OF_MANY = ".mlp.experts.0.down_proj.weight"
_ALL = ".mlp.experts.down_proj"
_OFFSET = ".mlp.gate.e_score_correction_bias"
_PERHAPS_WITHOUT = ("axk1",)  # whose routers may have no offsets

_TABLES = {
    "lm_head.weight": (
        "model.embed_tokens.weight",
        "backbone.embeddings.weight",
        "transformer.wte.weight",
        "wte.weight",
    ),
    "embed_out.weight": ("gpt_neox.embed_in.weight",),
    "proj_out.weight": ("model.decoder.embed_tokens.weight",),  # Whisper's
}
_TIED = ("tie_embedding", "tie_word_embeddings")  # by the first, if both are there
_PIECE = 1 << 24  # numbers that are compared together

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def open_checkpoint(path: str, on_error: ErrorHandler = raise_error) -> Checkpoint:
    """Open a GGUF file, a Hugging Face folder, or an Orbax or Pax checkpoint.

    A GGUF file may be any part of one that is split; a folder may also hold one GGUF file or its
    parts. Orbax and Pax checkpoints may be at gs:// or s3://. Raises CheckpointError, naming the
    file, if it is missing, unreadable or truncated. If `on_error` returns instead of raising, a
    Hugging Face folder opens even if some of its weight files are broken.
    """
    if path.partition("://")[0] in REMOTE and "://" in path:
        return _open_remote(path)
    place = local_place(path)
    if place is None:
        raise CheckpointError(
            f"{path}: checkpoints are read from local paths, and Orbax checkpoints also from "
            "gs:// and s3://; copy it to this machine first"
        )
    try:
        return _checked(_open(place, on_error))
    except OSError as exc:  # e.g. a path that cannot be inspected
        raise CheckpointError(f"{place} cannot be opened: {exc.strerror or exc}") from exc


def _open_remote(url: str) -> Checkpoint:
    layout = find_layout(Folder(url))
    if layout is None:
        raise CheckpointError(
            f"{url} does not exist or is not an Orbax checkpoint; other formats are read from "
            "local paths: copy it to this machine first"
        )
    return _checked(_orbax(layout))


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """Return the text part. Raises CheckpointError for absurd layer counts: no build would end."""
    try:
        part = with_own_head(with_stored_experts(as_published(text_part_of(checkpoint))))
        tensors = len(part.names())
        for key in _LAYER_KEYS:
            layers = part.config.get(key)
            if isinstance(layers, int) and layers > tensors:
                raise CheckpointError(
                    f"config.json says {key} is {layers}, but there are only {tensors} tensors"
                )
    except BaseException:
        checkpoint.close()
        raise
    return part


def _open(place: Path, on_error: ErrorHandler) -> Checkpoint:
    if place.is_dir():
        return _open_folder(place, on_error)
    if not place.exists():
        raise CheckpointError(f"{place} does not exist on this machine")
    if place.suffix == ".safetensors":
        raise CheckpointError(
            f"{place} is one file of a checkpoint: give the folder that also holds config.json"
        )
    if place.suffix in _PICKLED:
        raise _pickled(place.parent, [place.name])
    if place.is_file() and is_msgpack_map(place):
        return _orbax(layout_of_file(Folder(str(place.parent)), place.name))
    return _gguf(place)


def _open_folder(folder: Path, on_error: ErrorHandler) -> Checkpoint:
    if any((folder / name).exists() for name in WEIGHT_FILES):
        return SafetensorsCheckpoint(folder, on_error)
    if layout := find_layout(Folder(str(folder))):
        return _orbax(layout)
    files = sorted(file for file in folder.glob("*.gguf") if not is_mmproj(file.name))
    if files and len({whole_name(file.name) for file in files}) == 1:  # perhaps in parts
        return _gguf(files[0])
    if pickled := sorted(f.name for f in folder.iterdir() if f.suffix in _PICKLED):
        raise _pickled(folder, pickled)
    if (folder / "config.json").exists():
        return SafetensorsCheckpoint(folder)  # raises, naming the missing file
    found = ", ".join(file.name for file in files) or "neither"
    raise CheckpointError(
        f"{folder} must hold config.json and its weights, an Orbax checkpoint, or exactly one "
        f".gguf file or its parts; of these it holds {found}"
    )


def _gguf(file: Path) -> Checkpoint:
    """Open a GGUF file. Most servers never do, so what reads one is imported on use."""
    return import_module("model_server.checkpoints.gguf.checkpoint").GgufCheckpoint(file)


def _orbax(layout: OrbaxLayout) -> Checkpoint:
    """Open an Orbax or Pax checkpoint; what reads one is imported on use."""
    return import_module("model_server.checkpoints.orbax.checkpoint").OrbaxCheckpoint(layout)


def _pickled(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds {', '.join(names)}: such files are Python pickles, which can run any code "
        "when they are loaded, so they are never opened here. Fetch the model's safetensors files "
        "instead, or, if you trust the pickle, convert it with "
        "model.save_pretrained(FOLDER, safe_serialization=True)"
    )


# Tells whether a model has an output head of its own, where config.json and the tensors differ.
#
# A head that is tied to the embedding may be stored, too. As in transformers 5, one with other
# numbers is the model's, whatever config.json says; and where only the head is stored it is the
# embedding.


def with_own_head(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; its config says that a head is not tied if its numbers differ.

    Saxml's classes say by themselves what is tied.
    """
    names, config = checkpoint.names(), checkpoint.config
    head = next((name for name in names if name in _TABLES), None)
    key = next((key for key in _TIED if config.get(key) is not None), _TIED[-1])
    if head is None or config.get(key) is False or checkpoint.format == "pax":
        return checkpoint
    table = next((name for name in names if name in _TABLES[head]), None)
    if table is None:
        return _as_table(checkpoint, head)
    if _are_equal(checkpoint, head, table):
        return checkpoint
    own = {key: False for key in (*_TIED[:1], key) if key in config} or {_TIED[-1]: False}
    return view_of(checkpoint, {name: name for name in names}, config | own)


def _as_table(checkpoint: Checkpoint, head: str) -> Checkpoint:
    """Return the checkpoint with its head as the embedding of the model that its names tell."""
    names = checkpoint.names()
    roots = {name.partition(".")[0] for name in names}
    table = next((name for name in _TABLES[head] if name.partition(".")[0] in roots), None)
    if table is None:
        return checkpoint
    return view_of(checkpoint, {table if name == head else name: name for name in names})


def _are_equal(checkpoint: Checkpoint, head: str, table: str) -> bool:
    """Compare two tensors piece by piece; what cannot be read is left for the load to refuse."""
    shape = checkpoint.shape(head)
    if shape != checkpoint.shape(table):
        return False
    step = max(1, _PIECE // max(1, *shape[1:]))
    try:
        return all(
            np.array_equal(
                checkpoint.read(head, (rows, *map(slice, shape[1:]))),
                checkpoint.read(table, (rows, *map(slice, shape[1:]))),
            )
            for rows in (slice(at, min(at + step, shape[0])) for at in range(0, shape[0], step))
        )
    except CheckpointError:
        return True


# Tells a model how its experts are stored, where more than one way is usual.
#
# A family declares its tensors from config.json alone, which does not say it: published files of
# Qwen3.5 and Qwen3-VL hold all experts of a layer in two tensors, those saved by transformers or
# quantised may hold three of each expert. Qwen3-VL's two are published as [in, out], and saved by
# transformers as [out, in]. The routers of A.X K1 have no offsets, and transformers saves zeros.


def with_stored_experts(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; its config says `experts_apart` if they are stored one by one, and
    `experts_upright` if they are stored together and not as published; and `router_unbiased` if
    routers have no offsets, in a family where they may have some.
    """
    kind = checkpoint.config.get("model_type")
    if kind in _PERHAPS_WITHOUT:
        biased = any(name.endswith(_OFFSET) for name in checkpoint.names())
        return checkpoint if biased else _saying(checkpoint, "router_unbiased")
    if kind not in _EITHER_WAY:
        return checkpoint
    names = checkpoint.names()
    if any(name.endswith(_ONE_OF_MANY) for name in names):
        return _saying(checkpoint, "experts_apart")
    if kind in _TURNED and _upright(checkpoint):
        return _saying(checkpoint, "experts_upright")
    return checkpoint


def _saying(checkpoint: Checkpoint, key: str) -> Checkpoint:
    same = {name: name for name in checkpoint.names()}
    return view_of(checkpoint, same, {**checkpoint.config, key: True})


def _upright(checkpoint: Checkpoint) -> bool:
    """Return True if matrices [E, D, F] are stored where [E, F, D] are published."""
    sizes = (checkpoint.config.get(key) for key in ("hidden_size", "moe_intermediate_size"))
    stored = next((name for name in checkpoint.names() if name.endswith(_ALL)), None)
    embed, ffw = sizes
    return stored is not None and embed != ffw and checkpoint.shape(stored)[1:] == (embed, ffw)
