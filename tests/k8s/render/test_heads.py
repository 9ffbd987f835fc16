"""Model servers behind a Pathways proxy, as `sax k8s render` prints them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from k8s.render.order import PATHWAYS_KINDS
from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from k8s.render.pathways.options import DEPLOYMENT_MODES, PathwaysOptions
from k8s.render.rendering import Rendered
from sax.errors import InvalidRequest
from tests.k8s.manifests import kubectl
from tests.k8s.manifests import rendered as kustomized
from tests.k8s.render.orders import order, rendered

_needs_kubectl = pytest.mark.skipif(kubectl() is None, reason="kubectl is not installed")
_OURS = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
_ELASTIC: dict[str, Any] = {"slices": 2, "elastic_slices": 1, "max_slice_restarts": 4}


def pathways(
    kind: str = "pathways", part: str = "all", replicas: int = 1, **options: Any
) -> Rendered:
    return rendered(
        kind=kind,
        part=part,
        name="sax-pathways",
        replicas=replicas,
        pathways=PathwaysOptions(**options),
    )


def _plain(each: dict[str, Any]) -> dict[str, Any]:
    """Without what an overlay does not say: the number of the set, its label, order of flags."""
    made = copy.deepcopy(each)
    made["metadata"]["name"] = "sax-pathways"
    template = made["spec"].get("controller", {}).get("template")
    template = template or made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    for meta in (made["metadata"], template["metadata"]):
        meta["labels"].pop("app.kubernetes.io/instance", None)
    template["spec"]["containers"][0]["args"].sort()
    return made


@_needs_kubectl
@pytest.mark.parametrize(
    ("overlay", "kind", "options"),
    [
        ("", "pathways", {**_ELASTIC, "version": "latest"}),
        (
            "/colocated",
            "pathways",
            {**_ELASTIC, "version": "latest", "deployment_mode": "colocate_head_with_workers"},
        ),
        ("/our-components", "pathways", {**_ELASTIC, "components": _OURS, "trusts_network": True}),
        ("/jobset", "pathways-jobset", _ELASTIC),
    ],
)
def test_the_server_is_that_of_the_overlay(
    overlay: str, kind: str, options: dict[str, Any]
) -> None:
    objects = kustomized(f"overlays/pathways{overlay}")
    (theirs,) = [each for each in objects if each["kind"] in ("PathwaysJob", "JobSet")]
    (ours,) = pathways(kind, directory="gs://bucket/pathways", **options).servers
    text = json.dumps(_plain(theirs)).replace("BUCKET_NAME", "bucket")
    assert _plain(ours) == json.loads(text)


@_needs_kubectl
def test_admin_servers_answer_heads_on_the_hosts_network_and_no_others() -> None:
    """No policy can select the address of a node."""

    def callers(objects: Any) -> Any:
        (policy,) = [
            each
            for each in objects
            if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "sax-admin-server")
        ]
        return policy["spec"]["ingress"][0].get("from")

    assert callers(pathways().control) is None
    assert callers(kustomized("overlays/pathways")) is None
    assert callers(rendered().control)


def test_replicas_are_jobs_of_their_own() -> None:
    names = [each["metadata"]["name"] for each in pathways(replicas=3).servers]
    assert names == ["sax-pathways-0", "sax-pathways-1", "sax-pathways-2"]


@pytest.mark.parametrize("kind", PATHWAYS_KINDS)
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


_CASES = [
    (topology, kind, options)
    for kind in PATHWAYS_KINDS
    for topology, options in (
        ("v5e:4x8", _ELASTIC),
        ("v5e:2x4", {"components": _OURS, "deployment_mode": DEPLOYMENT_MODES[1]}),
        ("v5e:2x2", {"components": _OURS, "trusts_network": True}),
        ("v6e:4x4", {"slices": 9, "components": _OURS, "max_restarts": 0}),
        (
            "v7x:2x2x1",
            {
                "version": "jax-1",
                "collects_metrics": True,
                "worker_grace_seconds": 0,
                "worker_priority_class": "low",
                "node_selector": {"pool": "a"},
                "components": (
                    PathwaysComponent("worker", flags=("--xla_a=1",), env={"A": ""}),
                    PathwaysComponent("colocated_python_sidecar", image="gcr.io/me/s:1"),
                ),
            },
        ),
        ("v4:2x2x2", {}),
        ("v5p:2x2x4", {}),
    )
]


@pytest.mark.parametrize(("topology", "kind", "options"), _CASES)
def test_a_cluster_takes_it(topology: str, kind: str, options: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate", reason="schemas of Kubernetes are not installed")
    from tests.k8s.check import check
    from tests.k8s.schemas import NO_CRDS, custom_schemas

    made = rendered(topology, kind=kind, name="sax", pathways=PathwaysOptions(**options))
    found = check("sax k8s render", list(made.objects))
    assert not [str(each) for each in found if not each.note]
    if not custom_schemas():
        pytest.skip(NO_CRDS)
