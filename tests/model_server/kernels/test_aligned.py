"""What the CPU device would copy is aligned, and nothing is copied twice."""

from __future__ import annotations

import jax
import numpy as np

from model_server.kernels.aligned import aligned, aligned_empty


def test_arrays_begin_where_the_device_wants_them() -> None:
    for shape in ((3,), (5, 7), (2, 3, 4), (1024, 33)):
        for dtype in (np.uint8, np.float32, np.int64):
            made = aligned_empty(shape, dtype)
            assert (made.shape, made.dtype, made.ctypes.data % 64) == (shape, dtype, 0)


def test_the_device_takes_an_aligned_array_over_without_a_copy() -> None:
    made = aligned(np.ones((256, 64), np.float32)[:, ::2], np.float32)
    assert jax.device_put(made).unsafe_buffer_pointer() == made.ctypes.data


def test_an_aligned_array_stays_itself_and_another_dtype_is_converted() -> None:
    made = aligned_empty((4, 4), np.float32)
    made[...] = 1.5
    assert aligned(made, np.float32) is made
    assert (aligned(made, np.float16) == np.float16(1.5)).all()
