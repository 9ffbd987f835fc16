"""Names of slices: read, spelled otherwise, and put right."""

from __future__ import annotations

import pytest

from model_server.plan.slices import CHIPS, LENT, chips_of, parse_chip, parse_slice
from sax.errors import InvalidRequest
from tests.each_case import each_case


@each_case(
    "text, name",
    [
        ("v5e:4x8", "v5e:4x8"),
        ("V5E:4x8", "v5e:4x8"),
        ("v5litepod:4x8", "v5e:4x8"),
        ("tpu-v5-lite-podslice:4x8", "v5e:4x8"),
        ("tpuv5e:4x8", "v5e:4x8"),
        ("trillium:2x4", "v6e:2x4"),
        ("tpu7x:2x2x1", "v7x:2x2x1"),
        ("ironwood:2x2x1", "v7x:2x2x1"),
    ],
)
def test_a_slice_goes_by_many_names(text: str, name: str) -> None:
    assert str(parse_slice(text)) == name


def test_the_compiler_has_its_own_name_for_some_chips() -> None:
    assert parse_slice("v7x:2x2x1").for_compiler == "tpu7x:2x2x1"


@each_case(
    "text, hint",
    [
        ("v5x:4x8", "nearest: .*v5e:4x8"),
        ("v5e", "add a size: v5e:1x1, v5e:2x2"),
        ("v5litepod-32", "give their shape: v5e:4x8"),
        ("v5e:4y8", "write CHIP:SIZE"),
        ("something", "write CHIP:SIZE"),
        ("v5e:0x4", "has 0 chips"),
        ("v5e:99999x99999", "nearest: v5e:16x16"),
        ("v9z:nothing", "no TPU is called 'v9z'"),
    ],
)
def test_a_wrong_name_is_refused_with_better_ones(text: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint) as caught:
        parse_slice(text)
    assert caught.value.param == "topology"


def test_an_unknown_chip_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="there are v2, v3, v4, v5e, v5p, v6e, v7x"):
        parse_chip("h100")


def test_every_chip_can_be_had_in_sizes_that_grow() -> None:
    assert set(LENT) == set(CHIPS)
    for sizes in LENT.values():
        counts = [chips_of(size) for size in sizes]
        assert counts == sorted(counts)


def test_a_shape_that_nobody_lends_is_known_as_such() -> None:
    assert parse_slice("v5e:4x8").is_lent
    assert not parse_slice("v5e:4x6").is_lent
