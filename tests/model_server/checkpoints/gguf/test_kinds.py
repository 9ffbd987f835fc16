"""Every quantised kind gives the gguf package's numbers, bit for bit."""

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.gguf.kinds import KINDS, BlockFormat
from model_server.checkpoints.packed import FLOAT4, HALF_BYTES
from model_server.checkpoints.packed import KINDS as PACKED_KINDS
from tests.each_case import each_case

# Where a block has its float16s.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": (),
    "NVFP4": (), "TQ1_0": (52,), "TQ2_0": (64,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,),
    "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
}  # fmt: skip
FEW = settings(max_examples=25, deadline=None)  # of all kinds


def blocks(kind: GGMLQuantizationType, seed: int, count: int = 40) -> np.ndarray:
    """u8[count, bytes of a block]: any bits, but scales as models have them."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), np.uint8)
    for at in HALVES[kind.name]:
        numbers = rng.normal(0, 0.05, (count, 1)).astype(np.float16)
        raw[:, at : at + 2] = numbers.view(np.uint8)
    if kind.name == "MXFP4":
        raw[:, 0] = rng.integers(110, 140, count)
    if kind.name == "IQ1_M":  # four bits of the scale in each of four words
        number = rng.normal(0, 0.05, (count, 1)).astype(np.float16).view(np.uint16)
        words = raw[:, 48:].view(np.uint16) & 0x0FFF
        words |= number >> np.array([0, 4, 8, 12], np.uint16) << 12
        raw[:, 48:] = words.view(np.uint8)
    return raw


def dequantized(kind: BlockFormat, raw: np.ndarray) -> np.ndarray:
    out = np.empty((len(raw), kind.size), np.float32)
    kind.dequantize(raw, out)
    return out


def test_every_kind_of_the_issue_is_there() -> None:
    assert {kind.name for kind in KINDS} == set(HALVES)


@FEW
@given(seed=st.integers(0, 1000))
@each_case("kind", KINDS)
def test_the_numbers_are_the_gguf_packages(kind: GGMLQuantizationType, seed: int) -> None:
    raw = blocks(kind, seed)
    np.testing.assert_array_equal(dequantized(KINDS[kind], raw), dequantize(raw, kind))


@FEW
@given(seed=st.integers(0, 1000))
@each_case("kind", KINDS)
def test_packed_blocks_are_the_same_weights(kind: GGMLQuantizationType, seed: int) -> None:
    """Only moving 4-bit values to -8..7 may round, by less than a bit of a block's largest."""
    raw, of = blocks(kind, seed), KINDS[kind]
    packed, wanted = of.pack(raw), dequantized(of, raw)
    found = packed.dequantized()
    if not of.lowest:
        np.testing.assert_array_equal(found, wanted)
    assert of.packing.block is not None
    assert packed.offsets is not None or not of.packing.offset
    largest = np.abs(np.stack([found, wanted])).reshape(2, len(raw), -1, of.packing.block)
    bit = np.spacing(largest.max((0, 3)))[..., None]
    differences = np.abs(found - wanted).reshape(len(raw), -1, of.packing.block)
    assert (differences <= bit).all()


@each_case("kind", KINDS)
def test_values_fill_the_narrowest_kind_that_holds_them(kind: GGMLQuantizationType) -> None:
    of = KINDS[kind]
    values = of.pack(blocks(kind, 0, 400)).values
    assert of.packing.kind in PACKED_KINDS
    four_bits = values.min() >= -8 and values.max() <= 7
    assert (of.packing.kind in HALF_BYTES) == four_bits
    assert of.pack(blocks(kind, 0)).float4 == (of.packing.kind == FLOAT4)


@each_case("kind", KINDS)
def test_scales_that_are_no_numbers_make_no_noise(kind: GGMLQuantizationType) -> None:
    raw = np.full((3, KINDS[kind].nbytes), 0xFF, np.uint8)
    no_number = np.isnan(dequantized(KINDS[kind], raw)).any()
    assert no_number or kind.name == "NVFP4", "whose scales are all numbers"
    KINDS[kind].pack(raw)


@each_case("kind", KINDS)
def test_the_input_is_left_alone(kind: GGMLQuantizationType) -> None:
    raw = blocks(kind, 0)
    before = raw.copy()
    dequantized(KINDS[kind], raw)
    KINDS[kind].pack(raw)
    np.testing.assert_array_equal(raw, before)
