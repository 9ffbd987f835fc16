"""The files of a model's last start, programs and weights: whole, or known to be damaged."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from model_server.programs import last_start
from model_server.programs.last_start import (
    LastStart,
    MadeProgram,
    file_of,
    map_weights,
    mark_used,
    read_start,
    write_start,
    write_weights,
)
from sax.errors import CheckpointError

START = LastStart("key", {"a": MadeProgram("text", b"body" * 100), "b": MadeProgram("", b"")})

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(5000).astype(ml_dtypes.bfloat16),
    np.array(7, np.int8),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return file_of(tmp_path / "starts", "model")


def test_what_was_written_is_read_and_nothing_else_is_left(path: Path) -> None:
    assert read_start(path) == LastStart()
    write_start(path, START)
    assert read_start(path) == START
    write_start(path, LastStart("other"))
    assert read_start(path) == LastStart("other")
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_was_cut_or_changed_anywhere_is_known(path: Path) -> None:
    write_start(path, START)
    body = path.read_bytes()
    for end in range(0, len(body), 7):
        path.write_bytes(body[:end])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_start(path)
    for place in range(0, len(body), 7):
        path.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_start(path)


def test_a_folder_where_others_can_write_is_not_trusted(path: Path) -> None:
    write_start(path, START)
    path.parent.chmod(0o777)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        read_start(path)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        write_start(path, START)


def test_the_files_that_were_used_last_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_start, "_MOST_FILES", 2)
    files = [file_of(path.parent, name) for name in "abc"]
    for age, file in enumerate(files[:2]):
        write_start(file, START)
        os.utime(file, (age, age))
    mark_used(files[0])
    write_start(files[2], START)
    assert sorted(path.parent.iterdir()) == [files[0], files[2]]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "starts" / "model.weights"


def test_what_was_written_is_mapped_as_it_lies_under_its_key_alone(weights: Path) -> None:
    assert map_weights(weights, "key") is None
    assert write_weights(weights, "key", ARRAYS)
    found = map_weights(weights, "key")
    assert found is not None
    for array, held in zip(ARRAYS, found, strict=True):
        assert (held.dtype, held.shape) == (array.dtype, array.shape)
        assert np.array_equal(held, array)
        assert held.ctypes.data % mmap.PAGESIZE == 0
        assert not held.flags.writeable
    assert map_weights(weights, "other") is None
    assert list(weights.parent.iterdir()) == [weights]


def test_a_file_that_was_cut_or_changed_is_known(weights: Path) -> None:
    write_weights(weights, "key", ARRAYS)
    body = weights.read_bytes()
    held = [body.index(array.tobytes()) + at for array in ARRAYS for at in range(array.nbytes)]
    header = body.index(b"\0" * 64)
    for end in (*range(0, header, 9), header - 1, *range(mmap.PAGESIZE, held[-1], 1000), held[-1]):
        weights.write_bytes(body[:end])
        with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
            map_weights(weights, "key")
    for place in (*range(0, header, 5), *held[::333], held[-1]):
        weights.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            map_weights(weights, "key")


def test_weights_in_a_folder_where_others_can_write_are_not_trusted(weights: Path) -> None:
    write_weights(weights, "key", ARRAYS)
    weights.parent.chmod(0o777)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        map_weights(weights, "key")


def test_a_disk_that_is_nearly_full_is_left_alone(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_start, "_FREE", 10**15)
    assert not write_weights(weights, "key", ARRAYS)
    assert not weights.exists()


def test_files_in_use_stay_mapped_when_they_are_replaced(weights: Path) -> None:
    write_weights(weights, "key", ARRAYS)
    found = map_weights(weights, "key")
    write_weights(weights, "key", [array + array.dtype.type(1) for array in ARRAYS])
    assert found is not None
    assert np.array_equal(found[0], ARRAYS[0])
