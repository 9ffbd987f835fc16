"""A model on disk: configuration, tensors, tokenizer and chat template, whatever the format.

Everything comes in Hugging Face's terms (config.json keys, tensor names and layouts), so that the
models know one vocabulary. Knows nothing of models, devices or shardings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_server.chat_template import ChatTemplate
from model_server.checkpoints.gguf import GgufCheckpoint
from model_server.checkpoints.safetensors import SafetensorsCheckpoint
from model_server.tokenizer import HfTokenizer
from sax.errors import CheckpointError


class Checkpoint(Protocol):
    """An open checkpoint. Every method raises CheckpointError for what is wrong in the files."""

    @property
    def format(self) -> str:
        """`gguf` or `safetensors`."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """With the keys of a Hugging Face config.json."""
        ...

    @property
    def generation_config(self) -> dict[str, Any]:
        """With the keys of generation_config.json: sampling defaults, if the makers give any."""
        ...

    def names(self) -> list[str]:
        """Hugging Face names of all tensors, in file order."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str:
        """Of what `read` returns: float32, float16 or bfloat16."""
        ...

    def nbytes(self, name: str) -> int:
        """Of what `read` returns."""
        ...

    def read(self, name: str) -> np.ndarray:
        """One tensor in Hugging Face's layout; nothing is kept once the caller lets go of it."""
        ...

    def tokenizer(self) -> HfTokenizer: ...

    def chat_template(self) -> ChatTemplate | None: ...

    def close(self) -> None: ...


def ordered_ends(checkpoint: Checkpoint) -> list[int]:
    """The ids that end an answer, the one config.json names first."""
    given = checkpoint.config.get("eos_token_id")
    main = given[0] if isinstance(given, list) and given else given
    return sorted(checkpoint.tokenizer().eos_ids, key=lambda token_id: (token_id != main, token_id))


def open_checkpoint(path: str) -> Checkpoint:
    """Open a GGUF file, a Hugging Face folder, or a folder that holds one GGUF file.

    Raises CheckpointError, naming the file, if it is missing, unreadable or truncated.
    """
    if "://" in path:
        scheme, _, rest = path.partition("://")
        if scheme != "file":
            raise CheckpointError(
                f"{path}: checkpoints are read from local paths; copy it to this machine first"
            )
        path = rest
    place = Path(path).expanduser()
    try:
        return _open(place)
    except OSError as exc:  # a path that cannot even be looked at
        raise CheckpointError(f"{place} cannot be opened: {exc.strerror or exc}") from exc


def _open(place: Path) -> Checkpoint:
    if place.is_dir():
        return _open_folder(place)
    if not place.exists():
        raise CheckpointError(f"{place} does not exist on this machine")
    if place.suffix == ".safetensors":
        raise CheckpointError(
            f"{place} is one file of a checkpoint: give the folder that also holds config.json"
        )
    return GgufCheckpoint(place)


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").exists():
        return SafetensorsCheckpoint(folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return GgufCheckpoint(files[0])
    found = ", ".join(file.name for file in files) or "neither"
    raise CheckpointError(
        f"{folder} must hold config.json or exactly one .gguf file; it holds {found}"
    )
