"""Slices as the installed compiler knows them."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.plan.compiled import read_refusal
from model_server.plan.slices import CHIPS, LENT
from model_server.plan.topology import topology_of
from sax.errors import InvalidRequest, Unavailable
from tests.each_case import each_case
from tests.model_server.tpu_compiler import needs_compiler


@needs_compiler
@each_case("chip", CHIPS)
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
@pytest.mark.nightly
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
