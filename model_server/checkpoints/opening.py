"""Opens a checkpoint of any format by its path."""

from __future__ import annotations

from pathlib import Path

from model_server.checkpoints.as_published import as_published
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.huggingface.safetensors import SafetensorsCheckpoint
from model_server.checkpoints.huggingface.safetensors_header import ErrorHandler, raise_error
from model_server.checkpoints.huggingface.safetensors_tensors import WEIGHT_FILES
from model_server.checkpoints.orbax.checkpoint import OrbaxCheckpoint
from model_server.checkpoints.orbax.folder import REMOTE, Folder
from model_server.checkpoints.orbax.layout import find_layout, is_msgpack_map, layout_of_file
from model_server.checkpoints.own_head import with_own_head
from model_server.checkpoints.roots import local_place
from model_server.checkpoints.split_name import whole_name
from model_server.checkpoints.stored_experts import with_stored_experts
from model_server.checkpoints.text_part import text_part_of
from sax.errors import CheckpointError

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
    return _checked(OrbaxCheckpoint(layout))


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
        return OrbaxCheckpoint(layout_of_file(Folder(str(place.parent)), place.name))
    return GgufCheckpoint(place)


def _open_folder(folder: Path, on_error: ErrorHandler) -> Checkpoint:
    if any((folder / name).exists() for name in WEIGHT_FILES):
        return SafetensorsCheckpoint(folder, on_error)
    if layout := find_layout(Folder(str(folder))):
        return OrbaxCheckpoint(layout)
    files = sorted(folder.glob("*.gguf"))
    if files and len({whole_name(file.name) for file in files}) == 1:  # perhaps in parts
        return GgufCheckpoint(files[0])
    if pickled := sorted(f.name for f in folder.iterdir() if f.suffix in _PICKLED):
        raise _pickled(folder, pickled)
    if (folder / "config.json").exists():
        return SafetensorsCheckpoint(folder)  # raises, naming the missing file
    found = ", ".join(file.name for file in files) or "neither"
    raise CheckpointError(
        f"{folder} must hold config.json and its weights, an Orbax checkpoint, or exactly one "
        f".gguf file or its parts; of these it holds {found}"
    )


def _pickled(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds {', '.join(names)}: such files are Python pickles, which can run any code "
        "when they are loaded, so they are never opened here. Fetch the model's safetensors files "
        "instead, or, if you trust the pickle, convert it with "
        "model.save_pretrained(FOLDER, safe_serialization=True)"
    )
