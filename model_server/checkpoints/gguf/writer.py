"""Writes a checkpoint as a GGUF file that llama.cpp reads, tensor by tensor.

The inverse of `GgufCheckpoint`, for the same architectures. `gguf.GGUFWriter` lays out the file and
takes one tensor at a time. Stores float32, float16, bfloat16, Q8_0 and Q4_0; better quantised kinds
are left to llama.cpp's own tools.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.gguf_writer import GGUFWriter
from gguf.quants import quantize

from model_server.checkpoints.cast import cast
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    inverse,
)
from model_server.checkpoints.gguf.config import architecture_for, metadata_of, with_defaults
from model_server.checkpoints.gguf.vocabulary import tokenizer_metadata
from sax.errors import CheckpointError
from sax.types import Progress

_KINDS = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}
# The format of most matrices, which some readers ask for.
_FILE_TYPES = {
    "float32": LlamaFileType.ALL_F32,
    "float16": LlamaFileType.MOSTLY_F16,
    "bfloat16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
QUANTISED = ("q8_0", "q4_0")
# llama.cpp requires float32 for these, as for everything that is not a matrix.
_FLOAT32 = (
    "position_embd.weight",
    "token_types.weight",
    "ffn_gate_inp.weight",
    "shortconv.conv.weight",
)


@dataclass(frozen=True, slots=True)
class _TensorToWrite:
    gguf_name: str
    names: tuple[str, ...]  # Hugging Face names; several for stacked experts, in order
    place: TensorPlace
    shape: tuple[int, ...]  # in the file
    dtype: str  # key of _KINDS

    @property
    def nbytes(self) -> int:
        block, nbytes = GGML_QUANT_SIZES[_KINDS[self.dtype]]
        return math.prod(self.shape) // block * nbytes


def write_gguf(
    source: Checkpoint,
    path: Path,
    dtypes: Mapping[str, str],
    report: Callable[[Progress], None],
) -> None:
    """Write `source` to `path`; `dtypes` is the wanted format per tensor (float32, ..., q4_0).

    Overridden where llama.cpp requires it: vectors and a few matrices are stored as float32, and
    matrices whose rows are not whole blocks as float16. Raises CheckpointError.
    """
    config = with_defaults(source.config)
    architecture = architecture_for(config)
    metadata = {
        f"{architecture.name}.{suffix}": value
        for suffix, value in metadata_of(config, architecture).items()
    } | tokenizer_metadata(source)
    entries = _entries(source, architecture, config, dtypes)
    factors = architecture.factors(config)
    writer = GGUFWriter(path, architecture.name)
    try:
        writer.add_file_type(_file_type(entries))
        for key, value in metadata.items():
            _add(writer, key, value)
        _announce(writer, entries, factors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in factors.values():
            writer.write_tensor_data(values)
        _write_tensors(writer, source, config, entries, report)
    finally:
        writer.close()


def _file_type(entries: Sequence[_TensorToWrite]) -> LlamaFileType:
    matrices = Counter(entry.dtype for entry in entries if len(entry.shape) > 1)
    return _FILE_TYPES[max(matrices, key=matrices.__getitem__, default="float32")]


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _entries(
    source: Checkpoint, architecture: GgufArchitecture, config: Config, dtypes: Mapping[str, str]
) -> list[_TensorToWrite]:
    """Return entries in the order of `dtypes`; a layer's experts at the place of the first."""
    groups: dict[str, tuple[TensorPlace, dict[int, str]]] = {}
    for name in dtypes:
        if architecture.drops(name, config):
            continue
        named = architecture.from_hf(name)
        if named is None:
            raise CheckpointError(f"GGUF has no name for {architecture.name}'s tensor {name}")
        _, members = groups.setdefault(named.gguf_name, (named.place, {}))
        members[named.expert or 0] = name
    return [
        _entry(source, gguf_name, place, members, dtypes)
        for gguf_name, (place, members) in groups.items()
    ]


def _entry(
    source: Checkpoint,
    gguf_name: str,
    place: TensorPlace,
    members: dict[int, str],
    dtypes: Mapping[str, str],
) -> _TensorToWrite:
    names = tuple(name for _, name in sorted(members.items()))
    shapes = {source.shape(name) for name in names}
    if len(shapes) != 1 or sorted(members) != list(range(len(names))):
        raise CheckpointError(f"the {len(names)} experts of {names[0]} are not numbered from 0, "
                              "or not of one shape")  # fmt: skip
    (shape,) = shapes
    if place.transposed and len(shape) == 2:
        shape = shape[::-1]
    if place.filters and len(shape) == 3:
        shape = (shape[0], shape[2])
    dtype = _stored_dtype(gguf_name, shape, dtypes[names[0]])
    return _TensorToWrite(
        gguf_name, names, place, (len(names), *shape) if place.experts else shape, dtype
    )


def _stored_dtype(gguf_name: str, shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) == 1 or gguf_name.endswith(_FLOAT32):
        return "float32"
    whole_blocks = shape[-1] % GGML_QUANT_SIZES[_KINDS[dtype]][0] == 0
    return dtype if whole_blocks else "float16"


def _announce(
    writer: GGUFWriter, entries: list[_TensorToWrite], factors: Mapping[str, np.ndarray]
) -> None:
    for name, values in factors.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for entry in entries:
        # The writer uses the dtype only to detect shapes given in bytes, which these are not.
        float32 = np.dtype(np.float32)
        kind = _KINDS[entry.dtype]
        writer.add_tensor_info(entry.gguf_name, entry.shape, float32, entry.nbytes, kind)


def _write_tensors(
    writer: GGUFWriter,
    source: Checkpoint,
    config: Config,
    entries: list[_TensorToWrite],
    report: Callable[[Progress], None],
) -> None:
    total, done = sum(len(entry.names) for entry in entries), 0
    for entry in entries:
        parts: list[np.ndarray] = []
        for name in entry.names:
            report(Progress("writing", done, total, "tensors"))
            parts.append(_stored(name, source.read(name), entry, config))
            done += 1
        writer.write_tensor_data(np.stack(parts) if entry.place.experts else parts[0])
    report(Progress("writing", total, total, "tensors"))


def _stored(name: str, values: np.ndarray, entry: _TensorToWrite, config: Config) -> np.ndarray:
    """Convert one tensor to its form in the file; quantised tensors become bytes."""
    place = entry.place
    if place.transposed and values.ndim == 2:
        values = values.T
    if place.filters and values.ndim == 3:
        values = values[:, 0]
    values = np.ascontiguousarray(values)  # others are written one number at a time
    if place.order is not None:
        values = values[inverse(place.order.for_tensor(len(values), config, name))]
    if place.plus:
        values = values.astype(np.float32) + np.float32(place.plus)
    if entry.dtype in QUANTISED:
        return quantize(values.astype(np.float32), _KINDS[entry.dtype])
    return cast(name, values, entry.dtype)
