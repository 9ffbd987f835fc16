"""The memory that a model server asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8s.render.host_memory import memory_request, quantity
from k8s.render.planned import Planned
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case
from tests.k8s.render.orders import plan

_GIB = 2**30
_SLICES = [f"{each.chip}:{size}" for each in GENERATIONS.values() for size in each.sizes]


def test_it_is_the_process_and_the_weights_of_the_hosts_devices() -> None:
    """11 GiB on each of 4 devices, and 12 for the process."""
    assert quantity(memory_request(slice_of("v5e:4x8"), plan())) == "56Gi"


def test_a_larger_host_has_more_of_the_weights() -> None:
    where = {"topology": "v5e:2x4", "hosts": 2, "devices": 8}
    planned = plan(slice=where)
    assert memory_request(slice_of("v5e:2x4"), planned) == 56 * _GIB
    assert memory_request(slice_of("v5e:2x4", "ct5lp-hightpu-8t"), planned) == 100 * _GIB


def test_without_a_plan_it_is_what_the_manifests_say() -> None:
    assert memory_request(slice_of("v5e:4x8"), None) == 32 * _GIB


@given(st.sampled_from(_SLICES), st.integers(0, 2**40), st.booleans())
def test_a_node_can_always_give_it(topology: str, weights: int, is_planned: bool) -> None:
    there = slice_of(topology)
    devices = there.chips * (2 if there.generation.chip == "v7x" else 1)
    planned = Planned(
        topology=topology, path="p", hosts=there.hosts, weights=weights, used=weights,
        limit=weights, devices=devices, kv_tokens=1,
    )  # fmt: skip
    asked = memory_request(there, planned if is_planned else None)
    assert 0 < asked < there.machine.allocatable
    assert asked % _GIB == 0


@each_case("topology", _SLICES)
def test_every_host_can_hold_all_that_its_chips_hold(topology: str) -> None:
    """Else the request would be cut, and say less than a load may use."""
    from model_server.plan.slices import CHIPS

    there = slice_of(topology)
    chips = CHIPS[there.generation.chip].hbm * there.chips_per_host
    assert chips + 12 * _GIB < there.machine.allocatable
