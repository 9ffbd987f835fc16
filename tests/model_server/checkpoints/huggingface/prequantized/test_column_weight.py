"""GPTQ and AWQ weights give the numbers they were made from, sorted columns included.

The packers are loops over single numbers, written from the formats' descriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.huggingface.prequantized.column_weight import (
    awq_weights,
    gptq_weights,
)
from model_server.checkpoints.packed import Packing
from sax.errors import CheckpointError
from tests.each_case import Failures, each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import (
    Arrays,
    whole_read,
    words_along_rows,
)

OUT, IN, GROUP = 32, 64, 16
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
Made = tuple[dict[str, Any], Any, np.ndarray]


def numbers(bits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values [out, in], zeros and scales [out, groups]."""
    groups = IN // GROUP
    values = rng.integers(0, 1 << bits, (OUT, IN))
    zeros = rng.integers(1, 1 << bits, (OUT, groups))
    return values, zeros, rng.uniform(0.01, 0.1, (OUT, groups)).astype(np.float16)


def gptq(bits: int = 4, version: str = "gptq", *, sorted_columns: bool = False) -> Made:
    rng = np.random.default_rng(bits)
    values, zeros, scales = numbers(bits, rng)
    order = np.arange(IN) // GROUP
    if sorted_columns:
        order = rng.permutation(order)
    stored_zeros = zeros - 1 if version == "gptq" else zeros
    stored = Arrays(
        w__qweight=words_along_rows(values, bits).T.copy(),
        w__qzeros=words_along_rows(stored_zeros.T, bits),
        w__scales=scales.T.copy(),
        w__g_idx=order.astype(np.int32),
    )
    config = {"bits": bits, "group_size": GROUP, "checkpoint_format": version}
    wanted = (values - zeros[:, order]) * scales.astype(np.float32)[:, order]
    return config | {"desc_act": sorted_columns}, stored, wanted


def awq(*, zero_point: bool = True) -> Made:
    values, zeros, scales = numbers(4, np.random.default_rng(9))
    stored = Arrays(
        w__qweight=words_along_rows(values.T, 4, AWQ_ORDER),
        w__qzeros=words_along_rows(zeros.T, 4, AWQ_ORDER),
        w__scales=scales.T.copy(),
    )
    if not zero_point:
        del stored.arrays["w.qzeros"]
        zeros = np.full_like(zeros, 8)
    order = np.arange(IN) // GROUP
    wanted = (values - zeros[:, order]) * scales.astype(np.float32)[:, order]
    return {"bits": 4, "version": "gemm", "zero_point": zero_point}, stored, wanted


@cache
def cases() -> dict[str, tuple[Made, Packing | None]]:
    small = Packing("int4", GROUP, True)
    return {
        **{f"gptq of {bits} bits": (gptq(bits), small) for bits in (2, 3, 4)},
        "gptq of 8 bits": (gptq(8), Packing("int8", GROUP, True)),
        "gptq v2": (gptq(4, "gptq_v2"), small),
        "gptq with sorted columns": (gptq(4, sorted_columns=True), None),
        "gptq of 3 bits with sorted columns": (gptq(3, "gptq_v2", sorted_columns=True), None),
        "awq": (awq(), small),
        "awq without zeros": (awq(zero_point=False), Packing("int4", GROUP, False)),
    }


def read(config: dict[str, Any], stored: Any) -> Any:
    find = awq_weights if "version" in config else gptq_weights
    return find(config, stored.dtypes, stored)["w.weight"]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_region_gives_the_numbers_it_was_made_from(data: st.DataObject) -> None:
    failures = Failures()
    for case, ((config, stored, wanted), packing) in cases().items():
        weight = read(config, stored)
        first, last = sorted(data.draw(st.tuples(st.integers(0, OUT - 1), st.integers(0, OUT - 1))))
        left, right = sorted(data.draw(st.tuples(*[st.integers(0, IN // weight.step - 1)] * 2)))
        rows = slice(first, last + 1)
        columns = slice(left * weight.step, (right + 1) * weight.step)
        with failures.of(case, rows, columns):
            assert (weight.shape, weight.packing) == ((OUT, IN), packing)
            found = weight.read(stored, rows, columns).dequantized()
            np.testing.assert_allclose(found, wanted[rows, columns], rtol=1e-6, atol=1e-6)
    assert not failures, str(failures)


def test_one_group_for_all_columns_is_held_whole_though_they_were_sorted() -> None:
    config, stored, _ = gptq(sorted_columns=True)
    stored.arrays["w.g_idx"][:] = 0
    for part in ("qzeros", "scales"):
        stored.arrays[f"w.{part}"] = stored.arrays[f"w.{part}"][:1]
    assert read(config | {"group_size": -1}, stored).packing == Packing("int4", None, True)


def test_modules_may_have_bits_of_their_own() -> None:
    """As GPTQModel gives them; elsewhere other bits are an error."""
    config, stored, wanted = gptq(8)
    weight = read(config | {"bits": 4, "dynamic": {"+:w": {"bits": 8}}}, stored)
    np.testing.assert_allclose(whole_read(weight, stored), wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(CheckpointError, match=r"w\.qweight has 8 bits.*says 4"):
        read(config | {"bits": 4}, stored)


@each_case(
    "made, changes, words",
    [
        (gptq, {"checkpoint_format": "marlin"}, "marlin.*supported: gptq, gptq_v2"),
        (gptq, {"is_marlin_format": True}, "Marlin"),
        (awq, {"version": "gemv"}, "gemv.*gemm"),
        (awq, {"bits": 8}, "8 bits of AWQ"),
        (gptq, {"group_size": 32}, r"w\.scales has 4 scales a row; 64 columns in groups of 32"),
    ],
)
def test_settings_that_are_not_read_are_refused(
    made: Callable[[], Made], changes: dict[str, Any], words: str
) -> None:
    config, stored, _ = made()
    with pytest.raises(CheckpointError, match=words):
        read(config | changes, stored)


@each_case("made", [gptq, partial(gptq, 3), awq])
@each_case("part", ["qweight", "qzeros", "scales", "g_idx"])
def test_a_part_of_another_shape_is_named_with_both_shapes(
    made: Callable[[], Made], part: str
) -> None:
    config, stored, _ = made()
    if f"w.{part}" not in stored.arrays:
        return
    cut = Arrays()
    cut.arrays = stored.arrays | {f"w.{part}": stored.arrays[f"w.{part}"][:-1]}
    with pytest.raises(CheckpointError, match=r"tensor w\.(qweight|qzeros|scales|g_idx).*\d"):
        read(config, cut)


@each_case("made", [gptq, awq])
@each_case("part", ["qzeros", "scales"])
def test_a_missing_part_is_named(made: Callable[[], Made], part: str) -> None:
    config, stored, _ = made()
    left = Arrays()
    left.arrays = {name: array for name, array in stored.arrays.items() if part not in name}
    with pytest.raises(CheckpointError, match=rf"has no w\.{part} beside it"):
        read(config, left)


def test_words_of_another_size_are_refused() -> None:
    config, stored, _ = gptq()
    stored.arrays["w.qweight"] = stored.arrays["w.qweight"].astype(np.int64)
    with pytest.raises(CheckpointError, match=r"w\.qweight is I64"):
        read(config, stored)


def test_columns_of_groups_that_do_not_exist_are_refused() -> None:
    config, stored, _ = gptq()
    stored.arrays["w.g_idx"][3] = 4
    with pytest.raises(CheckpointError, match=r"w\.g_idx names the groups 0 to 4; there are 4"):
        read(config, stored)
