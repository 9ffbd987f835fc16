"""Converts between Hugging Face folders, GGUF files and Orbax checkpoints, and from Pax.

A destination ending in .gguf becomes a GGUF file, any other a Hugging Face folder unless `to` says
otherwise. By default nothing is lost: every tensor keeps the number format in which it is read
(float32 for quantised tensors). The result appears under its name only once it is complete.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.checkpoints.gguf.writer import QUANTISED, write_gguf
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.folder_writer import write_beside
from model_server.checkpoints.huggingface.safetensors_writer import MAX_SHARD, write_safetensors
from model_server.checkpoints.huggingface.sentence_transformers import (
    check_sentence_settings,
    copy_sentence_settings,
)
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.orbax.pax.dialect import PRAXIS_ONLY, SAXML_SIZES
from model_server.checkpoints.orbax.writer import write_orbax
from model_server.models.registry import fitting_classes, full_config
from sax.errors import CheckpointError
from sax.types import Progress

SAME = "same"
HUGGINGFACE, GGUF, ORBAX = FORMATS = ("huggingface", "gguf", "orbax")
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
    report: Callable[[Progress], None] = lambda progress: None,
    model_path: str | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Convert `source`. Raises CheckpointError if it is invalid or the destination exists.

    model_path, overrides: Saxml's class of a Pax checkpoint, which says nothing but its sizes.
    """
    target = _format(destination, to)
    if dtype in QUANTISED and target != GGUF:
        raise CheckpointError(f"{dtype} is only for GGUF files; a folder takes {', '.join(DTYPES)}")
    place = Path(destination).expanduser()
    if place.exists() or place.is_symlink():
        raise CheckpointError(f"{place} already exists; remove it or choose another name")
    opened = open_checkpoint(local_copy(source, report))

    def write(path: Path) -> None:
        _write(checkpoint, path, target, dtypes, max_shard, report)
        if target != GGUF:
            copy_sentence_settings(checkpoint.folder, path)

    try:
        checkpoint = _with_config(opened, model_path, overrides)
        if target == GGUF:
            check_sentence_settings(checkpoint.folder)
        dtypes = {n: checkpoint.dtype(n) if dtype == SAME else dtype for n in checkpoint.names()}
        _write_then_rename(place, write)
    except OSError as exc:
        raise CheckpointError(f"{place} cannot be written: {exc.strerror or exc}") from exc
    finally:
        opened.close()


def _with_config(
    checkpoint: Checkpoint, model_path: str | None, overrides: Mapping[str, str]
) -> Checkpoint:
    """Return a checkpoint whose config.json says all that a reader needs."""
    if SAXML_SIZES not in checkpoint.config:
        if model_path is None and not overrides:
            return checkpoint
        raise CheckpointError(
            "--model-path and --set are for Pax checkpoints without a config.json; this one has "
            "its own: leave them out"
        )
    if model_path is None and checkpoint.config.get("model_type") not in PRAXIS_ONLY:
        some = ", ".join(fitting_classes(checkpoint.config)[:_SHOWN]) or "none: give --set, too"
        raise CheckpointError(
            "a Pax checkpoint says its sizes and nothing else, such as how positions are rotated: "
            f"name its class with --model-path (of its sizes: {some}), or put a config.json beside "
            "it"
        )
    if model_path is None:
        return checkpoint
    config = dict(full_config(model_path, checkpoint.config, overrides))
    return view_of(checkpoint, {name: name for name in checkpoint.names()}, config)


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


def _write(
    checkpoint: Checkpoint,
    path: Path,
    target: str,
    dtypes: Mapping[str, str],
    max_shard: int,
    report: Callable[[Progress], None],
) -> None:
    if target == GGUF:
        write_gguf(checkpoint, path, dtypes, report)
        return
    path.mkdir()
    write_beside(checkpoint, path, dtypes)
    if target == ORBAX:
        write_orbax(checkpoint, path, dtypes, report)
    else:
        write_safetensors(checkpoint, path, dtypes, report, max_shard)


def _write_then_rename(place: Path, write: Callable[[Path], None]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        unfinished = work / place.name
        write(unfinished)
        unfinished.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
