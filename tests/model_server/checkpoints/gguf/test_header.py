"""The header is read within the file's bounds, whatever lengths it announces."""

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from model_server.checkpoints.gguf.header import GgufHeader, read_header
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError
from tests.each_case import each_case

START = b"GGUF" + struct.pack("<I", 3)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header_of(path: Path, data: bytes) -> GgufHeader:
    path.write_bytes(data)
    return read_header(TensorFile(path))


def with_values(*pairs: bytes, tensors: int = 0) -> bytes:
    return START + struct.pack("<QQ", tensors, len(pairs)) + b"".join(pairs)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        + struct.pack("<IQ", kind, offset)
    )


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("s", "grüße")
    writer.add_bool("b", False)
    writer.add_int8("i8", -3)
    writer.add_uint64("u64", 1 << 60)
    writer.add_float32("f", 1e-5)
    writer.add_float64("d", 0.1)
    writer.add_array("texts", ["a", "", "ü"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_custom_alignment(64)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("t", values)
    writer.add_tensor(
        "q",
        gguf.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0),
        raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(TensorFile(path))
    metadata = header.metadata
    assert metadata["s"] == "grüße"
    assert metadata["b"] is False
    assert (metadata["i8"], metadata["u64"]) == (-3, 1 << 60)
    assert (metadata["f"], metadata["d"]) == (1e-5, 0.1)
    assert metadata["texts"] == ["a", "", "ü"]
    assert metadata["numbers"].tolist() == [1, 2, 3]
    t, q = header.tensors["t"], header.tensors["q"]
    assert (t.shape, t.nbytes, t.offset % 64) == ((3, 4), 48, 0)
    assert (q.shape, q.nbytes, q.kind.name) == ((2, 64), 4 * 34, "Q8_0")
    stored = np.frombuffer(path.read_bytes()[t.offset : t.offset + t.nbytes], np.float32)
    np.testing.assert_array_equal(stored, values.ravel())


@each_case("data, words", [
        (b"", "truncated"),
        (b"GGU", "truncated"),
        (b"GGML" + bytes(20), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version"),
        (START, "truncated"),
        (START + struct.pack("<QQ", 0, 1 << 60), "announces"),
        (START + struct.pack("<QQ", 1 << 60, 0), "announces"),
        (with_values(struct.pack("<Q", 1 << 62)), "truncated|announces"),
        (with_values(text("k") + struct.pack("<I", 99) + bytes(8)), "unknown type 99"),
        (with_values(text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)), "announces"),
        (with_values(text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(8)), "unknown type 9"),
        (with_values(*[text("k") + struct.pack("<IB", 0, 7)] * 2), "appears twice"),
        (with_values(struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 7)), "UTF-8"),
        (with_values(text("general.alignment") + struct.pack("<II", 4, 0)), "alignment"),
        (with_values(text("general.alignment") + struct.pack("<II", 4, 48)), "alignment"),
        (with_values(tensor("t", (4,), 0, 0), tensors=1)[:8] + struct.pack("<QQ", 1, 0)
         + tensor("t", (4,), 0, 0), "tensor 't' .16 bytes. ends at byte"),
        (START + struct.pack("<QQ", 1, 0) + tensor("t", (4,), 77, 0), "unknown type 77"),
        (START + struct.pack("<QQ", 1, 0) + tensor("t", (33,), 8, 0), "shape"),
        (START + struct.pack("<QQ", 1, 0) + tensor("t", (0,), 0, 0), "shape"),
        (START + struct.pack("<QQ", 1, 0) + tensor("t", (1,) * 5, 0, 0), "5 dimensions"),
        (START + struct.pack("<QQ", 1, 0) + tensor("t", (1 << 40, 1 << 40), 0, 0), "truncated"),
        (START + struct.pack("<QQ", 2, 0) + tensor("t", (1,), 0, 0) * 2 + bytes(99), "twice"),
    ])  # fmt: skip
def test_damage_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        header_of(tmp_path / "x.gguf", data)
    assert "x.gguf" in caught.value.text


@each_case("kind", [gguf.GGUFValueType.STRING, gguf.GGUFValueType.UINT8])
def test_a_header_is_bounded_even_in_a_file_of_any_size(
    tmp_path: Path, kind: gguf.GGUFValueType
) -> None:
    path = tmp_path / "x.gguf"
    array = text("a") + struct.pack("<IIQ", gguf.GGUFValueType.ARRAY, kind, 1 << 32)
    path.write_bytes(with_values(array))
    os.truncate(path, 1 << 42)  # without the bytes on the disk
    with pytest.raises(CheckpointError, match="announces 4294967296 entries"):
        read_header(TensorFile(path))
