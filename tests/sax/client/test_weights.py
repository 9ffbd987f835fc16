"""Arrays for model servers of this machine, as a safetensors file in shared memory."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from sax.client.weights import write_safetensors
from sax.errors import InvalidRequest


def test_arrays_are_written_as_other_readers_expect_them(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "a": draw.standard_normal((3, 5)).astype(np.float32),
        "b.weight": draw.standard_normal((2, 4)).astype(ml_dtypes.bfloat16).T,
        "c": np.float16(7) * np.ones((), np.float16),
    }
    write_safetensors(tmp_path / "x", arrays)
    read = load_file(tmp_path / "x")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(read[name], array)


def test_other_numbers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="tensor x is int8"):
        write_safetensors(tmp_path / "x", {"x": np.ones(3, np.int8)})
