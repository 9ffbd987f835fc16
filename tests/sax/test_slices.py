"""TPU machines of Kubernetes Engine: against the planner's slices, and the compiler's hosts."""

from __future__ import annotations

import importlib.util

import pytest

from model_server.plan.slices import ALIASES, CHIPS, LENT, parse_slice
from sax.errors import InvalidRequest
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case

_GIB = 2**30
_LENT = [f"{chip}:{size}" for chip in GENERATIONS for size in LENT[chip]]


def test_the_cluster_has_every_chip_that_is_planned_for_but_the_oldest() -> None:
    assert set(CHIPS) - set(GENERATIONS) == {"v2", "v3"}
    assert {each.chip: each.accelerator for each in GENERATIONS.values()} == {
        "v4": "tpu-v4-podslice",
        "v5e": "tpu-v5-lite-podslice",
        "v5p": "tpu-v5p-slice",
        "v6e": "tpu-v6e-slice",
        "v7x": "tpu7x",
    }


@each_case("chip", GENERATIONS)
def test_the_planner_lends_the_same_slices(chip: str) -> None:
    assert GENERATIONS[chip].sizes == LENT[chip]


@each_case("topology", _LENT)
def test_every_lent_slice_is_whole_machines(topology: str) -> None:
    there = slice_of(topology)
    assert str(there) == topology
    assert there.hosts * there.chips_per_host == parse_slice(topology).chips == there.chips
    assert there.hosts == 1 or there.chips_per_host == 4


def test_whatever_the_planner_calls_a_chip_is_understood() -> None:
    for word, chip in ALIASES.items():
        if chip in GENERATIONS:
            size = LENT[chip][0]
            assert str(slice_of(f"{word}:{size}")) == str(parse_slice(f"{word}:{size}"))


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)
@each_case(
    "topology", ["v4:2x2x2", "v5e:1x1", "v5e:2x4", "v5e:4x8", "v5p:2x2x1", "v6e:2x2", "v7x:2x2x4"]
)
def test_the_compiler_counts_the_same_hosts(topology: str) -> None:
    from model_server.plan.topology import topology_of

    described, there = topology_of(topology), slice_of(topology)
    assert (there.hosts, there.chips_per_host) == (described.hosts, described.chips_per_host)


def test_the_tutorials_slice() -> None:
    there = slice_of("v5e:4x8")
    assert (there.hosts, there.chips_per_host, there.machine.name) == (8, 4, "ct5lp-hightpu-4t")
    assert there.platform_chip == "tpuv5e"
    assert there.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }


def test_eight_chips_are_one_machine_or_two() -> None:
    assert slice_of("v5e:2x4").hosts == 2
    assert slice_of("v5e:2x4", "ct5lp-hightpu-8t").hosts == 1
    assert slice_of("v6e:2x4", "ct6e-standard-8t").chips_per_host == 8


@each_case(
    "topology, machine, words",
    [
        ("v5e:4x8", "ct5lp-hightpu-1t", "1 chip and makes 1x1 only, not 4x8 with its 32 chips"),
        ("v5e:4x8", "ct5lp-hightpu-8t", "8 chips and makes 2x4 only.*ct5lp-hightpu-4t .8 of them"),
        ("v5e:1x1", "ct5lp-hightpu-4t", "makes 2x2 and larger.*ct5lp-hightpu-1t .one of them"),
        ("v5e:4x8", "ct6e-standard-4t", "has no v5e chips.*ct5lp-hightpu-4t"),
        ("v5e:4x8", "ct5lp-highcpu-4t", "nearest: .*ct5lp-hightpu-4t"),
        ("v5e:4x8", "x" * 300, "there is no TPU machine type"),
    ],
)
def test_a_machine_that_cannot_make_the_slice_is_refused_with_one_that_can(
    topology: str, machine: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        slice_of(topology, machine)
    assert refused.value.param == "machine_type"


@each_case(
    "topology, words",
    [
        ("v5e:4x9", "no slice v5e:4x9.*nearest: v5e:4x8"),
        ("v5e:2x2x2", "no slice v5e:2x2x2"),
        ("v5e:0x8", "no slice"),
        ("v3:4x8", "no TPU 'v3'"),
        ("v5e", "write CHIP:SIZE"),
        ("4x8", "write CHIP:SIZE"),
        ("v5e:4x8\nevil: 1", "write CHIP:SIZE"),
        ("", "write CHIP:SIZE"),
    ],
)
def test_a_slice_that_no_cluster_has_is_refused_with_the_nearest(topology: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        slice_of(topology)


def test_a_node_keeps_something_for_itself() -> None:
    """Of 48 GiB: 1 of the first 4, 0.8 of the next 4 and 8 each, 6 % of the rest, 0.1 beside."""
    small = slice_of("v5e:1x1").machine
    assert small.memory == 48 * _GIB
    assert 43 * _GIB < small.allocatable < 44 * _GIB  # 1 + 0.8 + 0.8 + 32 x 0.06 + 0.1
    for generation in GENERATIONS.values():
        for machine in generation.machines:
            assert 0.89 < machine.allocatable / machine.memory < 1
