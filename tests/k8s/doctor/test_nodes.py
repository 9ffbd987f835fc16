"""Slices that are there, whole, and usable."""

from __future__ import annotations

from typing import Any

from k8s.doctor.snapshot import ClusterNeeds
from sax.finding import PROBLEM, WARNING
from sax.slices import slice_of
from tests.each_case import each_case
from tests.k8s.doctor.diagnosing import TUTORIAL, only, troubles
from tests.k8s.doctor.snapshots import applied, event, node, pool, well


def test_a_missing_slice_is_a_problem_with_the_command_that_makes_it() -> None:
    found = only(well(nodes=pool("sax-0")), TUTORIAL)
    assert "1 usable v5e:4x8 in node pools sax-0, 2 wanted" in found.text
    assert "node-pools create sax-1 " in found.remedy
    assert "--machine-type=ct5lp-hightpu-4t --tpu-topology=4x8 --num-nodes=8" in found.remedy


def test_without_a_topology_the_sets_that_are_there_say_what_they_need() -> None:
    assert "1 usable v5e:4x8 in node pools p0, 2 wanted" in only(well(nodes=pool("p0"))).text


def test_no_node_at_all_is_a_problem_unless_some_are_coming() -> None:
    other = [node("cpu", labels={"cloud.google.com/gke-tpu-topology": ""})]
    assert only(well(nodes=other)).level == PROBLEM
    coming = [event("TriggeredScaleUp", "pod triggered scale-up: 0->8")]
    found = only(well(nodes=other, events=coming))
    assert (found.level, found.about) == (WARNING, "nodes")


@each_case(
    "changes, words, remedy",
    [
        ({"ready": "False"}, "p1-7: not ready", "kubectl describe node p1-7"),
        ({"ready": "Unknown"}, "p1-7: not ready", "kubectl describe node p1-7"),
        ({"spec": {"unschedulable": True}}, "p1-7: cordoned", "kubectl uncordon p1-7"),
        ({"chips": "0"}, "offers no google.com/tpu", "kubectl describe node p1-7"),
        ({"chips": "8"}, "offers 8 google.com/tpu", "kubectl describe node p1-7"),
        (
            {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}},
            "taint team=a:NoSchedule",
            "kubectl taint node p1-7 team:NoSchedule-",
        ),
    ],
)
def test_a_slice_with_one_bad_host_is_no_slice(
    changes: dict[str, Any], words: str, remedy: str
) -> None:
    nodes = [*pool("p0"), *pool("p1", 7), node("p1-7", "p1", **changes)]
    first, second = troubles(well(nodes=nodes))
    assert words in first.text
    assert first.remedy.startswith(remedy)
    assert "1 usable v5e:4x8" in second.text


def test_taints_that_our_pods_tolerate_or_that_repel_nobody_are_no_trouble() -> None:
    taints = [
        {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    nodes = [*pool("p0"), *pool("p1", 7), node("p1-7", "p1", spec={"taints": taints})]
    assert not troubles(well(nodes=nodes))


def test_a_pool_that_lacks_hosts_is_named() -> None:
    texts = [each.text for each in troubles(well(nodes=[*pool("p0"), *pool("p1", 5)]))]
    assert "node pool p1 has 5 nodes, but v5e:4x8 has 8 hosts" in texts


def test_every_node_of_a_pool_of_single_hosts_is_a_slice() -> None:
    there = {"cloud.google.com/gke-tpu-topology": "2x2"}
    nodes = [node(f"n{i}", "small", labels=there) for i in range(3)]
    wanted = ClusterNeeds(there=slice_of("v5e:2x2"), replicas=3)
    assert not [each for each in troubles(well(nodes=nodes), wanted) if each.about == "nodes"]
    few = ClusterNeeds(there=slice_of("v5e:2x2"), replicas=4)
    (found,) = [each for each in troubles(well(nodes=nodes), few) if each.about == "nodes"]
    assert "3 usable v5e:2x2" in found.text
    assert "--tpu-topology" not in found.remedy


def test_for_flex_start_only_its_nodes_count() -> None:
    flex_start = {"cloud.google.com/gke-flex-start": "true"}
    lent = [node(f"f-{i}", "f", labels=flex_start) for i in range(8)]
    things = applied()["jobsets"]
    for thing in things:
        pod = thing["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        pod["nodeSelector"] |= flex_start
    found = only(well(nodes=[*pool("p0"), *pool("p1"), *lent], jobsets=things))
    assert found.level == WARNING
    assert "1 usable v5e:4x8 of flex-start in node pools f, 2 wanted" in found.text
    assert "--flex-start --enable-autoscaling" in found.remedy
    none = only(well(jobsets=things))
    assert none.level == WARNING
    assert "no node has" in none.text
    assert "cloud.google.com/gke-flex-start=true" in none.text


def test_before_anything_is_deployed_flex_start_can_be_asked_for() -> None:
    wanted = ClusterNeeds(there=slice_of("v5e:4x8"), replicas=1, flex_start=True)
    assert "gke-flex-start=true" in only(well(), wanted).text
