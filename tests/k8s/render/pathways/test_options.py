"""Fields of a PathwaysJob: those that no controller would take are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from k8s.render.pathways.options import INSTANCE_TYPES, PathwaysOptions
from sax.errors import InvalidRequest
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case
from tests.k8s.render.pathways.programs import job

_OURS = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)


@each_case(
    "changes, words",
    [
        ({"slices": 0}, "--slices 0: write 1 to"),
        ({"max_restarts": -1}, "--max-restarts -1: write 0 to"),
        ({"max_restarts": 2**31}, "--max-restarts"),
        ({"slices": 2, "elastic_slices": -1}, "--elastic-slices -1"),
        ({"slices": 2, "elastic_slices": 2}, "one of the slices must stay"),
        ({"elastic_slices": 1}, "less than --slices 1"),
        ({"max_slice_restarts": 2}, "give both"),
        ({"slices": 2, "elastic_slices": 1, "max_slice_restarts": 0}, "--max-slice-restarts 0"),
        ({"worker_grace_seconds": -1}, "--worker-grace-seconds -1"),
        ({"worker_priority_class": "A b"}, "lower-case letters"),
        ({"deployment_mode": "both"}, "choose one of default, colocate_head_with_workers"),
        ({"directory": "s3://bucket/x"}, "--pathways-dir 's3://bucket/x': .* write gs://"),
        ({"directory": "gs://bucket/x\n"}, "write gs://"),
        ({"version": "a:b"}, "--pathways-version 'a:b'"),
        ({"version": "latest", "components": _OURS}, "no image of Google's is left"),
        ({"trusts_network": True}, "--trust-network True: none of the components is ours"),
        ({"node_selector": {"a b": "c"}}, "a node's label"),
        ({"node_selector": {"a": "b\n"}}, "a node's label"),
        (
            {"node_selector": {"cloud.google.com/gke-tpu-topology": "2x2"}},
            "follows from --topology",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        PathwaysOptions(**changes)
    assert refused.value.param


def test_every_field_that_is_given_is_named_as_the_command_line_spells_it() -> None:
    assert PathwaysOptions().given() == []
    given = PathwaysOptions(
        slices=3, directory="gs://bucket/x", version="1", max_restarts=0, elastic_slices=1,
        max_slice_restarts=2, deployment_mode="colocate_head_with_workers", collects_metrics=True,
        worker_grace_seconds=9, worker_priority_class="low", node_selector={"a": "b"},
        components=_OURS[:1], trusts_network=True,
    ).given()  # fmt: skip
    assert given == [
        "--slices", "--pathways-dir", "--pathways-version", "--max-restarts", "--elastic-slices",
        "--max-slice-restarts", "--deployment-mode", "--component", "--trust-network",
        "--enable-metrics-collection", "--worker-grace-seconds", "--worker-priority-class",
        "--worker-node-selector",
    ]  # fmt: skip


def test_all_fields_reach_their_place_in_the_job() -> None:
    spec = job(
        slices=3, directory="gs://bucket/x", version="1", max_restarts=0, elastic_slices=1,
        max_slice_restarts=2, deployment_mode="colocate_head_with_workers", collects_metrics=True,
        worker_grace_seconds=9, worker_priority_class="low", node_selector={"a": "b"},
    )["spec"]  # fmt: skip
    assert {key: spec[key] for key in ("maxRestarts", "pathwaysDir", "pathwaysVersion")} == {
        "maxRestarts": 0, "pathwaysDir": "gs://bucket/x", "pathwaysVersion": "1",
    }  # fmt: skip
    assert spec["workers"] == [
        {"type": "ct5lp-hightpu-4t", "topology": "4x8", "numSlices": 3, "maxSliceRestarts": 2,
         "terminationGracePeriodSeconds": 9, "priorityClassName": "low", "nodeSelector": {"a": "b"}}
    ]  # fmt: skip
    controller = {key: each for key, each in spec["controller"].items() if key != "template"}
    assert controller == {
        "deploymentMode": "colocate_head_with_workers", "mainContainerName": "sax-model-server",
        "enableMetricsCollection": True, "elasticSlices": 1,
    }  # fmt: skip


def test_fields_that_are_not_given_are_left_to_the_controller() -> None:
    spec = job()["spec"]
    assert spec.keys() == {"maxRestarts", "pathwaysDir", "workers", "controller"}
    assert spec["workers"][0].keys() == {"type", "topology", "numSlices"}
    assert spec["controller"].keys() == {"deploymentMode", "mainContainerName", "template"}


@pytest.mark.parametrize("topology", ["v5e:1x1", "v6e:1x1"])
def test_machines_with_one_chip_are_refused(topology: str) -> None:
    with pytest.raises(InvalidRequest, match="choose a slice of .*ct5lp-hightpu-4t"):
        job(topology)


def test_every_other_machine_of_the_cluster_is_taken() -> None:
    machines = {each.name for one in GENERATIONS.values() for each in one.machines}
    assert set(INSTANCE_TYPES) == {name for name in machines if not name.endswith("-1t")}
    eight = job("v5e:2x4")["spec"]["workers"][0]["type"]
    assert eight == slice_of("v5e:2x4").machine.name
