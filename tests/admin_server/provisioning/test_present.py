"""Reading Kueue's Workloads; stories of replicas whose capacity was taken back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_server.events import CellEvents
from admin_server.provisioning.cluster import JOBSET, ClusterTrouble, NotServed
from admin_server.provisioning.present import QUEUE_NAME, WORKLOADS, look, read_queue
from admin_server.provisioning.provisioner import Provisioner, ProvisioningTiming
from admin_server.provisioning.templates import TemplateFolder, object_for
from sax.names import CellId
from sax.types import ModelSpec
from tests.admin_server.conftest import eventually
from tests.admin_server.provisioning.queued_cluster import (
    REVOKED,
    QueuedCluster,
    condition,
    revoked,
    workload,
)
from tests.admin_server.provisioning.template_files import jobset, template, write
from tests.each_case import each_case
from tests.virtual_loop import now

pytestmark = pytest.mark.virtual_time

CELL = CellId("test")
M = "/sax/test/m"
SPEC = ModelSpec(model_id=M, model_path="llama", checkpoint="/one", replicas=1)
FINISHED = workload("w", "u", conditions=[condition("Finished", message="jobset failed")])
BY_HAND = workload("w", "u", active=False, conditions=[condition("Evicted", "Deactivated")])
REFUSED = {"name": "sax-flex-start", "state": "Rejected", "message": "no more retries"}
WAITS = {"name": "sax-flex-start", "state": "Pending", "message": "ETA unknown"}


@each_case("workloads, words", [
    ([revoked("w", "u")], f"Kueue deactivated its workload: {REVOKED}"),
    (
        [workload("w", "u", active=False, conditions=[condition("DeactivationTarget", "A")])],
        "Kueue deactivated its workload: A",
    ),
    (  # it was preempted before, which hides why it was deactivated
        [workload("w", "u", active=False, conditions=[condition("Evicted", "Preempted")],
                  admissionChecks=[REFUSED])],
        "Kueue deactivated its workload: sax-flex-start: no more retries",
    ),
    ([FINISHED], "Kueue takes it for finished: jobset failed"),
    ([FINISHED, revoked("w", "u")], "Kueue takes it for finished"),
])  # fmt: skip
def test_what_never_starts_again_is_told_with_the_words_of_kueue(workloads, words):
    assert read_queue(workloads).given_up.startswith(words)


@each_case(
    "workloads",
    [
        [],
        [workload("w", "u")],
        [BY_HAND],
        [FINISHED, workload("w", "u")],
        [workload("w", "u", conditions=[condition("Evicted", "PodsReadyTimeout")])],
        [workload("w", "u", conditions=[condition("Finished", status="False")])],
    ],
)
def test_what_may_start_again_or_was_stopped_by_a_person_is_not_given_up(workloads):
    assert read_queue(workloads).given_up == ""


def test_who_stopped_it_is_told_apart():
    assert read_queue([BY_HAND]).held_by == "w"
    assert read_queue([BY_HAND, workload("v", "u")]).held_by == ""


def test_what_keeps_it_in_the_queue_is_told():
    quota = condition("QuotaReserved", "Pending", "insufficient quota for google.com/tpu", "False")
    assert read_queue([workload("w", "u", admissionChecks=[WAITS])]).waits_for == "ETA unknown"
    told = read_queue([workload("w", "u", conditions=[quota])]).waits_for
    assert told == "insufficient quota for google.com/tpu"


_STATES = st.sampled_from([revoked("w", "u"), FINISHED, BY_HAND, workload("w", "u")])


@given(st.lists(_STATES, max_size=4), st.randoms(use_true_random=False))
def test_one_workload_that_may_start_is_enough_in_any_order(workloads, choose):
    shuffled = list(workloads)
    choose.shuffle(shuffled)
    alive = workload("w", "u") in workloads
    assert not (alive and read_queue(shuffled).given_up)
    assert bool(read_queue(shuffled).given_up) == bool(read_queue(workloads).given_up)
    assert read_queue(shuffled).held_by == read_queue(workloads).held_by


# What the look makes of it


async def seen(cluster: QueuedCluster) -> Any:
    (found,) = await look(cluster, CELL, ())
    return found


def queued() -> dict[str, Any]:
    body = object_for(template(jobset("slice")), M, "a", CELL)
    body["metadata"]["labels"][QUEUE_NAME] = "sax"
    return body


async def test_a_revoked_object_counts_as_failed_and_a_waiting_one_says_for_what():
    cluster = QueuedCluster()
    made = await cluster.create(JOBSET, queued())
    uid = made["metadata"]["uid"]
    assert (await seen(cluster)).held_up == "is suspended: it is queued for machines"
    cluster.workloads[uid] = workload("w", uid, admissionChecks=[WAITS])
    assert (await seen(cluster)).held_up.endswith("queued for machines: ETA unknown")
    cluster.workloads[uid] = {**BY_HAND, "metadata": workload("w", uid)["metadata"]}
    held = await seen(cluster)
    assert (held.state, held.held_up) == (
        "waiting",
        "is suspended: somebody deactivated its Kueue workload w",
    )
    cluster.revoke("a")
    assert ((await seen(cluster)).state, (await seen(cluster)).failure) == (
        "failed",
        f"Kueue deactivated its workload: {REVOKED}",
    )


async def test_without_the_right_or_the_kind_a_suspended_object_says_so():
    class Blind(QueuedCluster):
        async def objects(self, kind, labels):
            if kind is WORKLOADS:
                raise NotServed("Kubernetes refuses to list workloads")
            return await super().objects(kind, labels)

    cluster = Blind()
    await cluster.create(JOBSET, queued())
    found = await seen(cluster)
    assert found.state == "waiting"
    assert found.held_up.endswith("queued for machines; Kubernetes refuses to list workloads")


async def test_objects_that_are_ready_or_not_queued_ask_nothing_of_kueue():
    class Deaf(QueuedCluster):
        async def objects(self, kind, labels):
            if kind is WORKLOADS:
                raise ClusterTrouble("nobody may ask")
            return await super().objects(kind, labels)

    cluster = Deaf()
    await cluster.create(JOBSET, queued())
    cluster.admit("a")
    assert (await seen(cluster)).state == "ready"
    del cluster.jobsets["a"]["metadata"]["labels"][QUEUE_NAME]
    cluster.jobsets["a"]["status"] = {}
    assert (await seen(cluster)).state == "waiting"


# Stories


@dataclass
class Story:
    """A provisioner at work for one model, in virtual time."""

    cluster: QueuedCluster
    provisioner: Provisioner
    retired: list[frozenset[str]] = field(default_factory=list[frozenset[str]])

    @property
    def names(self) -> list[str]:
        return sorted(self.cluster.jobsets)

    def reasons(self) -> str:
        return " | ".join(self.provisioner.notes(M))


@asynccontextmanager
async def at_work(
    folder: Path, spec: ModelSpec = SPEC, kueue: Callable[[QueuedCluster], None] | None = None
) -> AsyncGenerator[Story]:
    """`kueue` decides every few seconds."""
    body = jobset("slice")
    body["metadata"]["labels"] = {QUEUE_NAME: "sax"}
    cluster, retired = QueuedCluster(), []

    async def leads() -> bool:
        return True

    provisioner = Provisioner(
        CELL,
        cluster,
        TemplateFolder(str(write(folder / "templates", body))),
        lambda: cluster.outlook(spec),
        leads,
        retired.append,
        now,
        limit=8,
        events=CellEvents(now),
        timing=ProvisioningTiming(poll_s=30),
        jitter=random.Random(0),
    )

    async def life() -> None:
        while True:
            if kueue is not None:
                kueue(cluster)
            provisioner.hear(cluster.outlook(spec).plan)
            await asyncio.sleep(10)

    tasks = [asyncio.create_task(life()), asyncio.create_task(provisioner.run())]
    try:
        yield Story(cluster, provisioner, retired)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_revoked_replica_is_made_anew_under_another_name_and_comes_back(tmp_path: Path):
    async with at_work(tmp_path) as story:
        await eventually(lambda: story.names)
        (first,) = story.names
        story.cluster.admit(first)
        await asyncio.sleep(3600)
        assert story.names == [first]
        story.cluster.revoke(first)
        await eventually(lambda: "the capacity was revoked" in story.reasons())
        await eventually(lambda: story.cluster.deleted == [first])
        await eventually(lambda: len(story.names) == 1)
        (second,) = story.names
        assert second != first
        assert "queued for machines" in story.reasons()
        story.cluster.admit(second)
        await asyncio.sleep(3600)
        assert story.names == [second]
        assert story.reasons() == ""
        assert frozenset({f"set:{first}"}) == story.retired[-1]


async def test_what_a_person_stopped_stays_stopped(tmp_path: Path):
    async with at_work(tmp_path) as story:
        await eventually(lambda: story.names)
        (name,) = story.names
        uid = story.cluster.jobsets[name]["metadata"]["uid"]
        story.cluster.workloads[uid] = {**BY_HAND, "metadata": workload("w", uid)["metadata"]}
        await asyncio.sleep(3 * 3600)
        assert story.cluster.made == [name]
        assert "somebody deactivated its Kueue workload w" in story.reasons()


def _revoke_all(cluster: QueuedCluster) -> None:
    for name, each in cluster.jobsets.items():
        if each["spec"]["suspend"] and cluster.workloads[each["metadata"]["uid"]]["spec"]["active"]:
            cluster.revoke(name)


async def test_capacity_that_never_stays_is_asked_for_ever_more_seldom(tmp_path: Path):
    async with at_work(tmp_path, kueue=_revoke_all) as story:
        await asyncio.sleep(3 * 3600)
        # At the longest pause of ten minutes, less a fifth of jitter, with the first few tries.
        assert 12 <= len(story.cluster.made) <= 3 * 3600 / 480 + 10
        assert len(story.names) <= 2  # one that is about to go, and its successor


async def test_a_replica_that_serves_does_not_hurry_the_tries_of_another(tmp_path: Path):
    def kueue(cluster: QueuedCluster) -> None:
        for name, each in cluster.jobsets.items():
            active = cluster.workloads[each["metadata"]["uid"]]["spec"]["active"]
            if each["spec"]["suspend"] and active:
                (cluster.admit if name == cluster.made[0] else cluster.revoke)(name)

    async with at_work(tmp_path, replace(SPEC, replicas=2), kueue) as story:
        await asyncio.sleep(3 * 3600)
        assert not story.cluster.jobsets[story.cluster.made[0]]["spec"]["suspend"]
        assert 12 <= len(story.cluster.made) <= 3 * 3600 / 480 + 10
