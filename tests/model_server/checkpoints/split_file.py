"""Splits a GGUF file into parts, by the `gguf` package's own writer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np

from model_server.checkpoints.gguf.parts import open_parts


def split_file(whole: Path, folder: Path, tensors: int = 8) -> list[Path]:
    """Write the parts, of some tensors each, to a new folder; return their paths in order."""
    folder.mkdir()
    with closing(open_parts(whole)) as opened:
        header, file = opened.header, opened.files[0]
        architecture = header.metadata["general.architecture"]
        # The first part without tensors, as llama.cpp may write it too.
        writer = gguf.GGUFWriter(
            folder / "m.gguf", architecture, split_max_tensors=tensors, small_first_shard=True
        )
        for key, value in header.metadata.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, tensor in header.tensors.items():
            raw = file.read(tensor.offset, tensor.nbytes, name).reshape(tensor.shape[0], -1)
            if len(tensor.shape) == 1:
                raw = raw.reshape(-1)
            writer.add_tensor(name, raw, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return sorted(folder.iterdir())


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        kinds.get(type(value), writer.add_string)(key, value)
