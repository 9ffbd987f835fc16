"""Opens a GGUF file, or all files that a checkpoint is split into, by the name of any of them.

The first part has the metadata of the model; each has split.no, from zero, split.count and tensors
of its own (llama.cpp's gguf-split).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor, read_header
from model_server.checkpoints.split_name import part_names
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class GgufParts:
    """Open files, and a header with the tensors of all of them."""

    files: tuple[TensorFile, ...]
    header: GgufHeader

    @property
    def path(self) -> Path:
        """The first file."""
        return self.files[0].path

    def close(self) -> None:
        for file in self.files:
            file.close()


def open_parts(path: Path) -> GgufParts:
    """Open the file at `path` and its other parts. Raises CheckpointError, naming those missing."""
    names = part_names(path.name)
    if missing := [name for name in names if not (path.parent / name).exists()]:
        raise CheckpointError(
            f"{path} is one of {len(names)} parts, and {len(missing)} are not beside it: "
            f"{', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}; fetch them into "
            f"{path.parent}"
        )
    with ExitStack() as opened:
        files: list[TensorFile] = []
        for part in [path.parent / name for name in names] or [path]:
            files.append(TensorFile(part))
            opened.callback(files[-1].close)
        headers = [read_header(file) for file in files]
        for number, (file, header) in enumerate(zip(files, headers, strict=True)):
            _check_part(file, header.metadata, number, len(files))
        header = GgufHeader(headers[0].metadata, _together(files, headers))
        opened.pop_all()
    return GgufParts(tuple(files), header)


def _check_part(file: TensorFile, metadata: dict[str, Any], number: int, count: int) -> None:
    if _COUNT not in metadata and count == 1:
        return
    said = metadata.get(_NUMBER), metadata.get(_COUNT)
    if said == (number, count):
        return
    if count == 1 and isinstance(said[1], int) and said[1] > 1:
        raise CheckpointError(
            f"{file.path} is one of {said[1]} parts, and its name does not say so: name them "
            f"NAME-00001-of-{said[1]:05}.gguf, ... in one folder"
        )
    raise CheckpointError(
        f"{file.path} has {_NUMBER} = {said[0]!r} and {_COUNT} = {said[1]!r} where its name says "
        f"{number} and {count}: the files belong to different checkpoints, or were renamed"
    )


def _together(files: Sequence[TensorFile], headers: Sequence[GgufHeader]) -> dict[str, GgufTensor]:
    """Return the tensors of all parts. Raises CheckpointError if some are twice or not there."""
    tensors: dict[str, GgufTensor] = {}
    for file, header in zip(files, headers, strict=True):
        if twice := tensors.keys() & header.tensors.keys():
            raise file.damaged(f"the tensor {min(twice)!r} is also in another part")
        tensors |= header.tensors
    wanted = headers[0].metadata.get(_TENSORS, len(tensors))
    if len(files) > 1 and wanted != len(tensors):
        raise CheckpointError(
            f"{files[0].path} announces {wanted} tensors in {len(files)} parts, which hold "
            f"{len(tensors)}: fetch them again"
        )
    return tensors
