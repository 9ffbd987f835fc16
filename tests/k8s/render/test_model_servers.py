"""The memory that a model server asks for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.render.model_servers import memory_request, quantity
from k8s.render.order import PATHWAYS_KINDS, Planned
from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from k8s.render.pathways.options import DEPLOYMENT_MODES, PathwaysOptions
from sax.errors import InvalidRequest
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case
from tests.k8s.render.orders import callers_of_admins, order, pathways, plan, rendered

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


_OURS = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
_ELASTIC: dict[str, Any] = {"slices": 2, "elastic_slices": 1, "max_slice_restarts": 4}


def test_admin_servers_answer_heads_on_the_hosts_network_and_no_others() -> None:
    """No policy can select the address of a node."""

    assert callers_of_admins(pathways().control) is None
    assert callers_of_admins(rendered().control)


def test_replicas_are_jobs_of_their_own() -> None:
    names = [each["metadata"]["name"] for each in pathways(replicas=3).servers]
    assert names == ["sax-pathways-0", "sax-pathways-1", "sax-pathways-2"]


@each_case("kind", PATHWAYS_KINDS)
def test_names_are_held_to_what_the_head_makes_of_them(kind: str) -> None:
    """The coordinator has the name twice, and 19 letters more."""
    order(name="x" * 20, kind=kind, replicas=10).check_names(hosts=8)
    with pytest.raises(InvalidRequest, match="its coordinator"):
        order(name="x" * 20, kind=kind, replicas=11).check_names(hosts=8)


@pytest.mark.parametrize("kind", ["jobset", "one-jobset", "leaderworkerset"])
def test_fields_of_a_pathways_job_are_refused_elsewhere(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="--elastic-slices|--slices goes with --kind pathways"):
        order(kind=kind, pathways=PathwaysOptions(slices=2, elastic_slices=1))


def test_the_heading_tells_what_the_cluster_needs() -> None:
    told = pathways(slices=2, part="servers").heading
    assert "each on 2 slices v5e:4x8, each of them 8 hosts of ct5lp-hightpu-4t" in told
    assert "PathwaysJob controller" in told
    assert "--machine-type=n2-standard-64 --num-nodes=1" in told
    assert "Google's Pathways images" in told
    assert "default/default, which must be allowed to use the bucket" in told
    ours = pathways(part="servers", components=_OURS).heading
    assert "Google's Pathways images" not in ours
    assert "belong to root" in ours
    assert "need certificates (--component-flag), or --trust-network" in ours
    trusted = pathways(part="servers", components=_OURS, trusts_network=True).heading
    assert "close them with a firewall" in trusted
    colocated = pathways(part="servers", deployment_mode=DEPLOYMENT_MODES[1]).heading
    assert "n2-standard-64" not in colocated
    plain = pathways("pathways-jobset", part="servers", components=_OURS).heading
    assert "Needs the JobSet controller" in plain
    assert "belong to root" not in plain
