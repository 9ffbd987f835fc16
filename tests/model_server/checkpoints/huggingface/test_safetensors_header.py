"""A header costs no more than its bounds, whatever it says."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.safetensors_header import MAX_HEADER, read_header
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError
from tests.each_case import each_case

TENSOR: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_with(path: Path, header: str, length: int | None = None) -> TensorFile:
    text = header.encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + bytes(8))
    return TensorFile(path)


def test_a_tensor_is_found(tmp_path: Path) -> None:
    tensors = read_header(file_with(tmp_path / "x", json.dumps({"a": TENSOR})))
    assert (tensors["a"].shape, tensors["a"].nbytes) == ((2,), 8)


@each_case(
    "header",
    [
        '{"a": {"dtype": "F32", "shape": [' + "9" * 4000 + '], "data_offsets": [0, 8]}}',
        '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, ' + "8" * 4000 + "]}}",
        json.dumps({"a": TENSOR | {"shape": [2**62] * 20_000}}),
        json.dumps({"a": TENSOR | {"shape": [2**62] * 16}}),
        '{"a": ' * 50_000,
        "[" * 50_000,
    ],
)
def test_numbers_and_nesting_without_bounds_are_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(CheckpointError, match="is damaged or of another format") as caught:
        read_header(file_with(tmp_path / "x", header))
    assert len(caught.value.text) < 1000


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(TENSOR)
    for header in (f'{{"b": {entry}, "a": {entry}, "a": {entry}}}', '{"b": {"a": 1, "a": 2}}'):
        with pytest.raises(CheckpointError, match="its header cannot be read: it has 'a' twice"):
            read_header(file_with(tmp_path / "x", header))


@each_case("length", [MAX_HEADER + 1, 2**40, 2**64 - 1])
def test_a_header_that_is_too_long_is_not_read(tmp_path: Path, length: int) -> None:
    file_with(tmp_path / "x", "{}", length)
    os.truncate(tmp_path / "x", 1 << 42)  # without the bytes on the disk
    with pytest.raises(CheckpointError, match=f"header of {length} bytes; at most"):
        read_header(TensorFile(tmp_path / "x"))
