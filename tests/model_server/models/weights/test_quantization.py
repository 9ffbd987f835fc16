"""Which weights are quantised, and that the numbers stay near what they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.models.weights.quantization import (
    AsStored,
    Scheme,
    common,
    parse_quantize,
    quantize,
    refined,
)
from model_server.models.weights.source import Joined, Tensor, Transposed
from sax.errors import InvalidRequest

HALF_STEP = {"int8": 0.5 / 127, "int4": 0.5 / 7, "float8_e4m3fn": 2.0**-4}


@pytest.mark.parametrize("kind", HALF_STEP)
@given(seed=st.integers(0, 99), block=st.sampled_from([None, 4, 8]))
def test_no_number_moves_more_than_half_a_step(kind: str, seed: int, block: int | None) -> None:
    rng = np.random.default_rng(seed)
    numbers = (rng.normal(size=(3, 16)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
    packed = quantize(numbers, Packing(kind, block, False))
    blocked = np.abs(numbers).reshape(3, -1, block or 16)
    allowed = np.repeat(blocked.max(-1), block or 16, axis=1) * HALF_STEP[kind] * 1.001
    assert (np.abs(packed.dequantized() - numbers) <= allowed).all()


@given(seed=st.integers(0, 99))
def test_with_offsets_both_ends_of_a_block_are_kept(seed: int) -> None:
    numbers = np.random.default_rng(seed).normal(1.0, 1.0, size=(3, 16)).astype(np.float32)
    packed = quantize(numbers, Packing("int4", 8, True))
    assert packed.values.min() == -8
    assert packed.values.max() == 7
    blocked, near = numbers.reshape(3, 2, 8), packed.dequantized().reshape(3, 2, 8)
    np.testing.assert_allclose(near.min(-1), blocked.min(-1), atol=1e-5)
    np.testing.assert_allclose(near.max(-1), blocked.max(-1), atol=1e-5)
    step = (blocked.max(-1) - blocked.min(-1)) / 15
    assert (np.abs(near - blocked) <= 0.501 * step[..., None]).all()


def test_a_row_of_zeros_stays_zero() -> None:
    for packing in (Packing("int8", None, False), Packing("int4", 4, True)):
        packed = quantize(np.zeros((2, 8), np.float32), packing)
        np.testing.assert_allclose(packed.dequantized(), 0.0, atol=1e-6)
        assert np.isfinite(packed.scales).all()


def test_schemes_are_read() -> None:
    cases = [
        ("int8", Scheme("int8", None)),
        ("int4:32", Scheme("int4", 32)),
        ("float8", Scheme("float8_e4m3fn", None)),
        ("stored", "stored"),
        (None, None),
    ]
    assert [parse_quantize(text) for text, _ in cases] == [scheme for _, scheme in cases]


def test_anything_else_is_refused_with_what_there_is() -> None:
    for text in ("int3", "int8:", "int8:0", "INT8", "int4:32:2", 8):
        with pytest.raises(InvalidRequest, match="int4:32"):
            parse_quantize(text)


def test_the_vocabulary_table_is_never_narrower_than_eight_bits() -> None:
    scheme = Scheme("int4", 32)
    assert scheme.packing_of(Tensor("e"), (100, 64), table=True) == Packing("int8", None, False)
    assert scheme.packing_of(Tensor("w"), (100, 64), table=False) == Packing("int4", 32, True)


def test_rows_that_are_no_whole_blocks_stay_plain() -> None:
    assert Scheme("int4", 32).packing_of(Tensor("w"), (100, 48), table=False) is None
    assert Scheme("int4", None).packing_of(Tensor("w"), (100, 49), table=False) is None


def test_asking_for_what_fits_no_matrix_is_refused() -> None:
    table = Packing("int8", None, False)
    Scheme("int8", 32).check([table, Packing("int8", 32, False)])
    with pytest.raises(InvalidRequest, match="no column count is a multiple of 31"):
        Scheme("int8", 31).check([table])
    with pytest.raises(InvalidRequest, match="no column count is even"):
        Scheme("int4", None).check([table])
    AsStored(lambda name: None).check([table])
    with pytest.raises(InvalidRequest, match="none that can be kept"):
        AsStored(lambda name: None).check([])


def test_stored_parts_share_the_wider_form() -> None:
    forms = {"q": Packing("int4", 32, True), "v": Packing("int8", 16, False), "n": None}
    stored = AsStored(forms.__getitem__)
    both = Joined((Tensor("q"), Tensor("v")))
    assert stored.packing_of(both, (8, 64), table=False) == Packing("int8", 16, True)
    assert stored.packing_of(Tensor("n"), (8, 64), table=False) is None
    assert stored.packing_of(Transposed(Tensor("q")), (8, 64), table=False) is None


def test_forms_without_a_common_one_are_dequantised() -> None:
    float8, int8 = Packing("float8_e4m3fn", 32, False), Packing("int8", 32, False)
    assert common([float8, int8], 64) is None
    assert common([Packing("int8", 48, False), Packing("int8", 32, False)], 96) is None


def test_a_refined_form_holds_the_same_numbers() -> None:
    blocks = PackedBlocks(
        np.arange(16, dtype=np.int8).reshape(2, 8), np.float32([[1, 2], [3, 4]]), None
    )
    wider = refined(blocks, Packing("int4", 4, False), Packing("int8", 2, True))
    assert wider.scales.shape == (2, 4)
    np.testing.assert_array_equal(wider.dequantized(), blocks.dequantized())
