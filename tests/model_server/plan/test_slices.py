"""Slices: their names read, spelled otherwise and put right, and as the compiler knows them."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.plan.chips import CHIPS
from model_server.plan.compiled import read_refusal
from model_server.plan.slices import (
    LENT,
    chips_of,
    parse_chip,
    parse_slice,
    topology_of,
)
from sax.errors import InvalidRequest, Unavailable
from tests.model_server.tpu_compiler import needs_compiler


@pytest.mark.parametrize(
    ("text", "name"),
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


@pytest.mark.parametrize(
    ("text", "hint"),
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


@needs_compiler
@pytest.mark.parametrize("chip", CHIPS)
def test_the_compiler_knows_every_slice_that_can_be_had(chip: str) -> None:
    for size in LENT[chip][:6]:
        found = topology_of(f"{chip}:{size}")
        assert len(found.devices) == found.chips * found.chip.devices
        assert found.hosts * found.chips_per_host == found.chips
        assert found.chips_per_host <= 4


@needs_compiler
def test_a_slice_says_how_its_chips_stand_on_hosts() -> None:
    found = topology_of("v5e:4x8")
    assert (found.name, found.chips, found.hosts, found.chips_per_host) == ("v5e:4x8", 32, 8, 4)
    found = topology_of("v7x:2x2x1")
    assert len(found.devices) // found.hosts == 8


@needs_compiler
def test_what_the_compiler_is_told_and_writes_does_not_reach_other_processes() -> None:
    topology_of("v5e:2x2")
    told = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [line for line in told if line.startswith(("TPU_WORKER", "TPU_ACC", "CLOUD_TPU"))]
    assert kept == []


@needs_compiler
def test_a_size_that_the_compiler_refuses_is_told_with_others_nearby() -> None:
    with pytest.raises(InvalidRequest, match="3x3 does not divide into; nearest: v5e:2x4, v5e:4x4"):
        topology_of("v5e:3x3")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_a_program_may_fill_what_the_table_says(chip: str) -> None:
    """Asked as the table was filled: with a program that is too large for every chip."""
    device = topology_of(f"{chip}:{LENT[chip][0]}").devices[:1]
    everywhere = NamedSharding(Mesh(np.asarray(device), ("x",)), PartitionSpec())
    large = jax.ShapeDtypeStruct((2**18, 2**20), jnp.float32, sharding=everywhere)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda array: array + 1).lower(large).compile()
    refusal = read_refusal(str(caught.value))
    assert refusal is not None
    assert refusal[1] == CHIPS[chip].usable


def test_without_the_compiler_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install 'libtpu"):
        topology_of("v5e:2x2")
