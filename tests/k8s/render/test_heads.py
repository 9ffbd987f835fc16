"""Model servers behind a Pathways proxy, as `sax k8s render` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.render.order import PATHWAYS_KINDS
from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from k8s.render.pathways.options import DEPLOYMENT_MODES, PathwaysOptions
from sax.errors import InvalidRequest
from tests.each_case import each_case
from tests.k8s.render.orders import callers_of_admins, order, pathways, rendered

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
