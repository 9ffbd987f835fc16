"""Converts between Hugging Face folders, GGUF files and Orbax checkpoints, and from Pax.

A destination ending in .gguf becomes a GGUF file, any other a Hugging Face folder unless `to` says
otherwise. By default nothing is lost: every tensor keeps the number format in which it is read
(float32 for quantised tensors). The result appears under its name only once it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.gguf.writer import QUANTISED
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.merged_adapter import MergedAdapter
from model_server.checkpoints.huggingface.peft import open_adapter
from model_server.checkpoints.huggingface.safetensors_writer import MAX_SHARD
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.writing import (
    FORMATS,
    GGUF,
    HUGGINGFACE,
    SAME,
    Report,
    check_absent,
    quiet,
    write_checkpoint,
)
from model_server.models.full_config import needs_class, says_only_sizes, with_full_config
from model_server.models.registry import fitting_classes
from sax.errors import CheckpointError

__all__ = ["FORMATS", "NUMBER_FORMATS", "convert", "size_of"]

NUMBER_FORMATS = (SAME, *DTYPES, *QUANTISED)

_SHOWN = 3  # classes in an error
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]?B|)", re.IGNORECASE)


def convert(
    source: str,
    destination: str,
    *,
    to: str | None = None,
    dtype: str = SAME,
    max_shard: int = MAX_SHARD,
    report: Report = quiet,
    model_path: str | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    adapter: str | None = None,
) -> None:
    """Convert `source`. Raises CheckpointError if it is invalid or the destination exists.

    adapter: a LoRA adapter's folder, which is written into the weights.

    model_path, overrides: Saxml's class of a Pax checkpoint, which says nothing but its sizes.
    """
    target = _format(destination, to)
    if dtype in QUANTISED and target != GGUF:
        raise CheckpointError(f"{dtype} is only for GGUF files; a folder takes {', '.join(DTYPES)}")
    place = Path(destination).expanduser()
    check_absent(place)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_checkpoint(local_copy(source, report))))
        checkpoint = _with_config(opened, model_path, overrides)
        if adapter is not None:
            changes = open_adapter(local_copy(adapter, report), merging=True)
            checkpoint = MergedAdapter(checkpoint, stack.enter_context(closing(changes)))
        write_checkpoint(checkpoint, place, target, dtype=dtype, max_shard=max_shard, report=report)


def _with_config(
    checkpoint: Checkpoint, model_path: str | None, overrides: Mapping[str, str]
) -> Checkpoint:
    """Return a checkpoint whose config.json says all that a reader needs."""
    if not says_only_sizes(checkpoint):
        if model_path is None and not overrides:
            return checkpoint
        raise CheckpointError(
            "--model-path and --set are for Pax checkpoints without a config.json; this one has "
            "its own: leave them out"
        )
    if model_path is not None:
        return with_full_config(checkpoint, model_path, overrides)
    if not needs_class(checkpoint):
        return checkpoint
    some = ", ".join(fitting_classes(checkpoint.config)[:_SHOWN]) or "none: give --set, too"
    raise CheckpointError(
        "a Pax checkpoint says its sizes and nothing else, such as how positions are rotated: name "
        f"its class with --model-path (of its sizes: {some}), or put a config.json beside it"
    )


def size_of(text: str) -> int:
    """Parse `500MB`, `2.5 GB` or a plain number into bytes. Raises CheckpointError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise CheckpointError(f"{text!r} is not a file size; write it like 500MB or 5GB")
    return size


def _format(destination: str, to: str | None) -> str:
    if "://" in destination:
        raise CheckpointError(
            f"{destination}: checkpoints are written to local paths; copy the result there"
        )
    named_gguf = destination.endswith(".gguf")
    if named_gguf and to not in (None, GGUF):
        raise CheckpointError(
            f"{destination} is the name of a GGUF file, but --to is {to}; choose another name"
        )
    return to or (GGUF if named_gguf else HUGGINGFACE)
