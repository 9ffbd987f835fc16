"""Lists the files that hold a checkpoint's tensors, and the number formats stored in them.

Reads headers only and skips errors in them, which opening the checkpoint reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.gguf.parts import open_parts
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.split_name import part_names
from model_server.plan.checkpoint.inspect_report import StoredFile, StoredKind
from sax.errors import CheckpointError


def stored_files(path: str, checkpoint: Checkpoint) -> list[StoredFile]:
    """Return the files of a local checkpoint; for one in a bucket its URL, with size 0."""
    place = _local(path)
    if place is None:
        return [StoredFile(path, 0)]
    if checkpoint.format in ("orbax", "pax") and place.is_dir():
        return [StoredFile(place.name, _size(place))]
    if place.is_file():
        found = [place.with_name(name) for name in part_names(place.name)] or [place]
    else:
        found = sorted(place.glob(_PATTERN[checkpoint.format]))
    return [StoredFile(file.name, file.stat().st_size) for file in found]


def stored_kinds(path: str, checkpoint: Checkpoint) -> list[StoredKind]:
    """Return totals per number format, the largest first."""
    if checkpoint.format == "gguf":
        tensors = _gguf(path)
    elif checkpoint.format == "safetensors":
        tensors = _safetensors(path)
    else:
        tensors = _readable(checkpoint)
    kinds: dict[str, StoredKind] = {}
    for kind, size in tensors:
        before = kinds.get(kind, StoredKind(kind, 0, 0))
        kinds[kind] = StoredKind(kind, before.tensors + 1, before.bytes + size)
    return sorted(kinds.values(), key=lambda kind: -kind.bytes)


_PATTERN = {"gguf": "*.gguf", "safetensors": "*.safetensors"}


def _gguf(path: str) -> list[tuple[str, int]]:
    place = _local(path)
    assert place is not None, "GGUF files are read from local paths"
    with closing(open_parts(place if place.is_file() else next(place.glob("*.gguf")))) as parts:
        return [(t.kind.name, t.nbytes) for t in parts.header.tensors.values()]


def _safetensors(path: str) -> list[tuple[str, int]]:
    place = _local(path)
    assert place is not None, "Hugging Face folders are read from local paths"
    stored = StoredTensors(place, lambda error: None)
    try:
        return [(dtype, stored.nbytes(name)) for name, dtype in stored.dtypes.items()]
    finally:
        stored.close()


def _readable(checkpoint: Checkpoint) -> Iterable[tuple[str, int]]:
    for name in checkpoint.names():
        try:
            yield checkpoint.dtype(name), checkpoint.nbytes(name)
        except CheckpointError:  # unsupported dtype
            continue


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _local(path: str) -> Path | None:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        return None
    return Path(rest if separator else path).expanduser()
