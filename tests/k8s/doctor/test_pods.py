"""Pods in trouble, and what their exit codes mean."""

from __future__ import annotations

from k8s.doctor.finding import PROBLEM, WARNING
from tests.each_case import each_case
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import container, exited, pod, waiting, well


@each_case(
    "code, meaning",
    [(75, "lost a host"), (2, "rejected its flags"), (137, "killed"), (1, "log says why")],
)
def test_exit_codes_are_told_in_words(code: int, meaning: str) -> None:
    loop = waiting("CrashLoopBackOff", restartCount=4, lastState=exited(code))
    found = only(well(pods=[pod("w", conditions=[], containerStatuses=loop)]))
    assert found.level == PROBLEM
    assert meaning in found.text
    assert f"(exit code {code})" in found.text
    assert found.remedy == "kubectl -n default logs w --previous"


def test_a_host_that_was_lost_and_is_back_is_a_warning() -> None:
    back = [container(state={"running": {}}, restartCount=1, lastState=exited(75))]
    found = only(well(pods=[pod("w", containerStatuses=back)]))
    assert found.level == WARNING
    assert "was restarted: its replica lost a host" in found.text


def test_a_pod_that_ended_to_be_started_again_is_a_warning() -> None:
    for code, level in ((75, WARNING), (143, WARNING), (1, PROBLEM)):
        ended = [container(state=exited(code))]
        found = only(well(pods=[pod("w", phase="Failed", conditions=[], containerStatuses=ended)]))
        assert found.level == level


def test_out_of_memory_is_called_so() -> None:
    ended = [container(state=exited(137, reason="OOMKilled"))]
    found = only(well(pods=[pod("w", phase="Failed", conditions=[], containerStatuses=ended)]))
    assert "needed more memory than its limit" in found.text


def test_pods_in_the_same_trouble_are_told_together() -> None:
    lonely = {"type": "PodScheduled", "status": "False", "message": "0/16 nodes are available"}
    pods = [pod(f"w{i}", phase="Pending", conditions=[lonely]) for i in range(8)]
    found = only(well(pods=pods))
    assert found.text == "w0, w1, w2 and 5 more: no node: 0/16 nodes are available"


def test_a_pod_that_a_queue_holds_back_is_a_warning() -> None:
    held = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    found = only(well(pods=[pod("w", phase="Pending", conditions=[held])]))
    assert (found.level, "held back by a queue" in found.text) == (WARNING, True)


def test_pods_that_are_going_or_are_not_ours_are_left_alone() -> None:
    going = pod("w", phase="Failed", conditions=[])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stranger = pod("x", phase="Failed", conditions=[])
    stranger["metadata"]["labels"] = {"app": "other"}
    assert not troubles(well(pods=[going, stranger]))
