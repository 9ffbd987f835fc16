"""Whether API servers and webhooks would take what `sax k8s render` prints.

Core kinds are held against Kubernetes' schemas, custom ones against those of their CRDs with their
rules, names against what controllers make of them, flags and variables against our own programs.
"""

from __future__ import annotations

from typing import Any

import pytest

from k8s.render.bucket import StorageBucket
from k8s.render.image import ImageSource
from k8s.render.order import KINDS, PATHWAYS_KINDS
from k8s.render.pathways.component import COMPONENTS, PROGRAMS, PathwaysComponent
from k8s.render.pathways.options import DEPLOYMENT_MODES, INSTANCE_TYPES, PathwaysOptions
from tests.each_case import each_case
from tests.k8s.cluster import NO_CLUSTER, dry_run, kubeconfig
from tests.k8s.render.orders import plan, rendered
from tests.k8s.render.pathways.programs import job

pytest.importorskip("kubernetes_validate", reason="schemas of Kubernetes are not installed")
pytest.importorskip("celpy", reason="the language of the rules is not installed")

_SLICES = (
    ("v5e:1x1", None),
    ("v5e:2x4", "ct5lp-hightpu-8t"),
    ("v5e:4x8", None),
    ("v6e:4x4", None),
    ("v5p:2x4x4", None),
    ("v7x:2x2x1", None),
    ("v4:2x2x2", None),
)
_MORE: tuple[dict[str, Any], ...] = (
    {},
    {"replicas": 3, "flex_start": True, "namespace": "serving", "is_reserved": True},
    {
        "replicas": 1,
        "spot": True,
        "model": "meta-llama/Llama-3-70B",
        "model_path": "llama",
        "overrides": {"QUANTIZE": '"int8"'},
        "slots": 9,
        "max_context": 1024,
        "bucket": StorageBucket.parse("s3://state/cells"),
        "images": ImageSource("us-docker.pkg.dev/me/sax", "v1.2.3"),
        "service_account_email": "sax@my-project.iam.gserviceaccount.com",
    },
)


# Every slice with every kind, the rest of the order in turns.
_ORDERS = [
    (*there, kind, _MORE[(row + column) % len(_MORE)])
    for row, there in enumerate(_SLICES)
    for column, kind in enumerate(KINDS)
]


_OURS = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
_HEADS = [
    (topology, kind, options)
    for kind in PATHWAYS_KINDS
    for topology, options in (
        ("v5e:4x8", {"slices": 2, "elastic_slices": 1, "max_slice_restarts": 4}),
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


@pytest.mark.extended
@each_case("topology, machine, kind, more", _ORDERS)
def test_a_cluster_takes_it(
    topology: str, machine: str | None, kind: str, more: dict[str, Any]
) -> None:
    _check(rendered(topology, machine, kind=kind, **more).objects)


@pytest.mark.extended
@each_case("topology, kind, options", _HEADS)
def test_a_cluster_takes_it_behind_a_proxy(
    topology: str, kind: str, options: dict[str, Any]
) -> None:
    made = rendered(topology, kind=kind, name="sax", pathways=PathwaysOptions(**options))
    _check(made.objects)


def test_a_cluster_takes_it_with_a_plan_and_names_at_their_limit() -> None:
    _check(rendered(planned=plan()).objects)
    _check(rendered("v5e:2x2", name="x" * 34, replicas=10).objects)
    _check(rendered("v5e:2x2", name="x" * 50, replicas=10, kind="leaderworkerset").objects)


def test_the_check_itself_finds_what_is_wrong() -> None:
    made = rendered("v5e:4x8")
    made.control[0]["data"] = 7
    with pytest.raises(AssertionError):
        _check(made.objects)


def test_the_choices_are_those_of_the_schema() -> None:
    from tests.k8s.schemas import NO_CRDS, custom_schemas

    schemas = custom_schemas()
    if not schemas:
        pytest.skip(NO_CRDS)
    schema = schemas["pathways-job.pathways.domain/v1", "PathwaysJob"]["properties"]["spec"]
    fields = schema["properties"]
    components = fields["customComponents"]["items"]["properties"]
    workers = fields["workers"]["items"]["properties"]
    controller = fields["controller"]["properties"]
    assert set(components["componentType"]["enum"]) == set(COMPONENTS)
    assert set(workers["type"]["enum"]) == set(INSTANCE_TYPES)
    assert set(controller["deploymentMode"]["enum"]) == set(DEPLOYMENT_MODES)
    written = {"deploymentMode", "elasticSlices", "enableMetricsCollection", "mainContainerName"}
    assert controller.keys() == written | {"template"}
    assert workers.keys() == job(
        slices=2, elastic_slices=1, max_slice_restarts=1, worker_grace_seconds=1,
        worker_priority_class="low", node_selector={"a": "b"},
    )["spec"]["workers"][0].keys()  # fmt: skip


def _check(objects: Any) -> None:
    """Errors fail; without the CRDs the rest is checked, and the test says what was not."""
    from tests.k8s.check import check
    from tests.k8s.schemas import NO_CRDS, custom_schemas

    found = check("sax k8s render", list(objects))
    assert not [str(each) for each in found if not each.note]
    if not custom_schemas():
        pytest.skip(NO_CRDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_api_server_takes_it(kind: str, dry_run_namespace: str) -> None:
    assert not dry_run(rendered(kind=kind).as_text(), dry_run_namespace)


@pytest.mark.skipif(not kubeconfig(), reason=NO_CLUSTER)
def test_a_real_cluster_can_be_looked_at() -> None:
    from k8s.doctor.cluster import open_cluster
    from k8s.doctor.diagnosis import diagnose
    from k8s.doctor.snapshot import ClusterNeeds

    with open_cluster(kubeconfig()) as cluster:
        snapshot = cluster.look()
    assert snapshot.version
    assert not snapshot.failed
    assert diagnose(snapshot, ClusterNeeds())
