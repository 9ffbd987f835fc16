"""Opens a checkpoint of any format: configuration, tensors, tokenizer and chat template.

Everything is presented in Hugging Face's terms (config.json keys, tensor names and layouts), so
models deal with one convention only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_server.chat_template import ChatTemplate
from model_server.checkpoints.complaint import Complain, raise_it
from model_server.checkpoints.gguf import GgufCheckpoint
from model_server.checkpoints.orbax import OrbaxCheckpoint
from model_server.checkpoints.orbax_folder import REMOTE, Folder
from model_server.checkpoints.orbax_layout import find_layout
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.checkpoints.safetensors import WEIGHT_FILES, SafetensorsCheckpoint
from model_server.checkpoints.text_part import text_part_of
from model_server.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class Checkpoint(Protocol):
    """An open checkpoint. Every method raises CheckpointError if the files are at fault."""

    @property
    def format(self) -> str:
        """gguf, safetensors or orbax."""
        ...

    @property
    def folder(self) -> Path | None:
        """The local folder of its small files; None if it is a single file."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with the keys of a Hugging Face config.json."""
        ...

    @property
    def generation_config(self) -> dict[str, Any]:
        """Sampling defaults, if any, with the keys of generation_config.json."""
        ...

    def names(self) -> list[str]:
        """Return the Hugging Face names of all tensors, in file order."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str:
        """Return the dtype that `read` returns: float32, float16 or bfloat16."""
        ...

    def nbytes(self, name: str) -> int:
        """Return the size of what `read` returns."""
        ...

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Read a tensor or a region of it, dequantised, in Hugging Face's layout.

        Only the region's rows (its first dimension) are read from disk, and nothing is cached.
        `out`, an array of the region's shape, is filled in its own dtype, without an intermediate
        copy where possible.
        """
        ...

    def packing(self, name: str) -> Packing | None:
        """Return how a tensor is quantised; None if it is not."""
        ...

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        """Read a quantised tensor without dequantising; a region's columns must be whole blocks."""
        ...

    def tokenizer(self) -> HfTokenizer: ...

    def chat_template(self) -> ChatTemplate | None: ...

    def close(self) -> None: ...


def ordered_ends(checkpoint: Checkpoint) -> list[int]:
    """Return the end token ids, the one that config.json names first."""
    given = checkpoint.config.get("eos_token_id")
    main = given[0] if isinstance(given, list) and given else given
    return sorted(checkpoint.tokenizer().eos_ids, key=lambda token_id: (token_id != main, token_id))


def open_checkpoint(path: str, complain: Complain = raise_it) -> Checkpoint:
    """Open a GGUF file (or a folder around one), a Hugging Face folder or an Orbax checkpoint.

    Orbax checkpoints may also be at gs:// or s3://. Raises CheckpointError, naming the file, if it
    is missing, unreadable or truncated. If `complain` returns instead of raising, a Hugging Face
    folder opens even if some of its weight files are broken.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme in REMOTE:
        return _open_remote(path)
    if separator and scheme != "file":
        raise CheckpointError(
            f"{path}: checkpoints are read from local paths, and Orbax checkpoints also from "
            "gs:// and s3://; copy it to this machine first"
        )
    place = Path(rest if separator else path).expanduser()
    try:
        return _checked(_open(place, complain))
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
    """Return the text part. Raises CheckpointError for a layer count that cannot be true.

    Building a model with billions of announced layers would never end.
    """
    try:
        part = text_part_of(checkpoint)
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


def _open(place: Path, complain: Complain) -> Checkpoint:
    if place.is_dir():
        return _open_folder(place, complain)
    if not place.exists():
        raise CheckpointError(f"{place} does not exist on this machine")
    if place.suffix == ".safetensors":
        raise CheckpointError(
            f"{place} is one file of a checkpoint: give the folder that also holds config.json"
        )
    if place.suffix in _PICKLED:
        raise _pickled(place.parent, [place.name])
    return GgufCheckpoint(place)


def _open_folder(folder: Path, complain: Complain) -> Checkpoint:
    if any((folder / name).exists() for name in WEIGHT_FILES):
        return SafetensorsCheckpoint(folder, complain)
    if layout := find_layout(Folder(str(folder))):
        return OrbaxCheckpoint(layout)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return GgufCheckpoint(files[0])
    if pickled := sorted(f.name for f in folder.iterdir() if f.suffix in _PICKLED):
        raise _pickled(folder, pickled)
    if (folder / "config.json").exists():
        return SafetensorsCheckpoint(folder)  # raises, naming the missing file
    found = ", ".join(file.name for file in files) or "neither"
    raise CheckpointError(
        f"{folder} must hold config.json and its weights, an Orbax checkpoint, or exactly one "
        f".gguf file; of these it holds {found}"
    )


def _pickled(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds {', '.join(names)}: such files are Python pickles, which can run any code "
        "when they are loaded, so they are never opened here. Fetch the model's safetensors files "
        "instead, or, if you trust the pickle, convert it with "
        "model.save_pretrained(FOLDER, safe_serialization=True)"
    )
