"""The file of a model's last weights: whole, or known to be damaged."""

from __future__ import annotations

import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from model_server.programs import last_weights
from model_server.programs.last_weights import map_weights, write_weights
from sax.errors import CheckpointError

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(5000).astype(ml_dtypes.bfloat16),
    np.array(7, np.int8),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "starts" / "model.weights"


def test_what_was_written_is_mapped_as_it_lies_under_its_key_alone(path: Path) -> None:
    assert map_weights(path, "key") is None
    assert write_weights(path, "key", ARRAYS)
    found = map_weights(path, "key")
    assert found is not None
    for array, held in zip(ARRAYS, found, strict=True):
        assert (held.dtype, held.shape) == (array.dtype, array.shape)
        assert np.array_equal(held, array)
        assert held.ctypes.data % mmap.PAGESIZE == 0
        assert not held.flags.writeable
    assert map_weights(path, "other") is None
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_was_cut_or_changed_is_known(path: Path) -> None:
    write_weights(path, "key", ARRAYS)
    body = path.read_bytes()
    held = [body.index(array.tobytes()) + at for array in ARRAYS for at in range(array.nbytes)]
    header = body.index(b"\0" * 64)
    for end in (*range(0, header, 9), header - 1, *range(mmap.PAGESIZE, held[-1], 1000), held[-1]):
        path.write_bytes(body[:end])
        with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
            map_weights(path, "key")
    for place in (*range(0, header, 5), *held[::333], held[-1]):
        path.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            map_weights(path, "key")


def test_a_folder_where_others_can_write_is_not_trusted(path: Path) -> None:
    write_weights(path, "key", ARRAYS)
    path.parent.chmod(0o777)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        map_weights(path, "key")


def test_a_disk_that_is_nearly_full_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_weights, "_FREE", 10**15)
    assert not write_weights(path, "key", ARRAYS)
    assert not path.exists()


def test_files_in_use_stay_mapped_when_they_are_replaced(path: Path) -> None:
    write_weights(path, "key", ARRAYS)
    found = map_weights(path, "key")
    write_weights(path, "key", [array + array.dtype.type(1) for array in ARRAYS])
    assert found is not None
    assert np.array_equal(found[0], ARRAYS[0])
