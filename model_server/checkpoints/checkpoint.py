"""Interface of an open checkpoint: configuration, tensors, tokenizer and chat template.

Everything is presented in Hugging Face's terms (config.json keys, tensor names and layouts), so
models deal with one convention only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer

ARRAYS = "arrays"  # format of tensors that lie in this process's memory


class Checkpoint(Protocol):
    """An open checkpoint. Every method raises CheckpointError if the files are at fault."""

    @property
    def format(self) -> str:
        """gguf, safetensors, orbax, pax, or ARRAYS, whose `read` without `out` copies nothing."""
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
