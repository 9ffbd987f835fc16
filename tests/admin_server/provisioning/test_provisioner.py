"""An admin server that asks an API of Kubernetes for model servers: lightkube over real ports."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.assignment.plan import CellActions, Outlook
from admin_server.assignment.report import ModelReport
from admin_server.assignment.seen import Seen
from admin_server.config import AdminConfig
from admin_server.events import CellEvents
from admin_server.ledger.state import CellState
from admin_server.process import Running, running
from admin_server.provisioning.kubernetes import connect
from admin_server.provisioning.provisioner import Provisioner, ProvisioningTiming
from admin_server.provisioning.templates import TemplateFolder
from sax.errors import InvalidRequest
from sax.names import CellId
from sax.need import Need
from sax.proto import admin_pb2, admin_pb2_grpc
from sax.types import Autoscaling, ModelSpec, Placement
from sax.wire.rpc import open_channel
from tests.admin_server.conftest import eventually
from tests.admin_server.fake_modelet import FakeModelet
from tests.admin_server.provisioning.fake_controller import (
    JOBSETS,
    LEADER_WORKER_SETS,
    FakeController,
    controlled,
)
from tests.admin_server.provisioning.queued_cluster import REVOKED, revoked
from tests.admin_server.provisioning.template_files import jobset, leader_worker_set, write
from tests.admin_server.quick_admin import FAST, QUICK
from tests.kubernetes_api import KubernetesApi, kubernetes_api

pytestmark = pytest.mark.extended

pytest.importorskip("lightkube", reason="lightkube is not installed")

M = "/sax/test/m"
# For an admin server that finds no servers of an earlier one: there is nothing to wait for.
PROMPT = replace(QUICK, poll_s=0.05, delete_s=0.1, settle_s=0.0)
ROOT = Path(__file__).parents[3]


def spec(name: str = "m", **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=f"/sax/test/{name}", **settings)


@pytest.fixture
def api(tmp_path: Path, monkeypatch) -> Generator[KubernetesApi]:
    with kubernetes_api(tmp_path, namespace="cell") as server:
        server.install("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        server.install("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


@pytest_asyncio.fixture
async def controller(api: KubernetesApi) -> AsyncGenerator[FakeController]:
    async with controlled(api) as at_work:
        yield at_work


@pytest.fixture
def kube_config(config: AdminConfig, tmp_path: Path) -> AdminConfig:
    folder = write(
        tmp_path / "templates", jobset("slice", hosts=2), leader_worker_set("big", hosts=4)
    )
    return replace(config, kubernetes=str(folder))


@asynccontextmanager
async def leading(
    config: AdminConfig, controller: FakeController, timing: ProvisioningTiming = PROMPT
) -> AsyncGenerator[Running]:
    async with running(config, FAST, provisioning=timing) as admin:
        controller.port = admin.port
        yield admin


def reasons(admin: Running, model_id: str = M) -> str:
    return " | ".join(replica.reason for replica in admin.cell.find(model_id).replicas)


async def test_replicas_become_objects_and_go_with_them(kube_config, api, controller):
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec(replicas=2))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 2)
        assert len(api.names(JOBSETS)) == 2
        await admin.cell.update(replace(admin.cell.find(M).spec, replicas=1))
        await eventually(lambda: len(api.names(JOBSETS)) == 1)
        assert admin.cell.find(M).ready_replicas == 1
        assert controller.holding(M) == api.names(JOBSETS)
        await admin.cell.unpublish(M)
        await eventually(lambda: not api.objects(JOBSETS))
        assert len(controller.started) == 2  # none was made in vain


async def test_a_server_that_joined_by_itself_counts(kube_config, api, controller):
    async with leading(kube_config, controller) as admin, ordinary(admin):
        await admin.cell.publish(spec(replicas=2))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 2)
        assert len(controller.started) == 1


async def test_a_server_that_is_away_for_a_while_rents_no_machines(kube_config, api, controller):
    patient = replace(PROMPT, lost_s=600)
    async with leading(kube_config, controller, patient) as admin, ordinary(admin) as server:
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        incarnation = server.incarnation
        server.away = True
        await server.cut_off()
        await eventually(lambda: "fell silent and may come back" in reasons(admin))
        listed = len(api.requests)
        await eventually(lambda: len(api.requests) > listed + 10)
        await server.start()
        server.away = False
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        assert server.incarnation == incarnation
        assert not controller.started


async def test_the_smallest_template_that_satisfies_the_placement_is_taken(
    kube_config, api, controller
):
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec(placement=Placement(devices=9)))
        await admin.cell.publish(spec("huge", placement=Placement(devices=17)))
        await eventually(lambda: len(api.names(LEADER_WORKER_SETS)) == 1)
        (name,) = api.names(LEADER_WORKER_SETS)
        assert name.startswith("big-m-")
        await eventually(
            lambda: "slice has 8 devices, but 17 are" in reasons(admin, "/sax/test/huge")
        )
        assert not api.names(JOBSETS)


async def test_no_more_is_asked_for_than_the_limit_lets_through(kube_config, api, controller):
    async with leading(replace(kube_config, kubernetes_limit=2), controller) as admin:
        await admin.cell.publish(spec(replicas=5))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 2)
        await eventually(lambda: "--kubernetes_limit is 2" in reasons(admin))
        await admin.cell.publish(spec("n", replicas=1))
        await eventually(lambda: "--kubernetes_limit is 2" in reasons(admin, "/sax/test/n"))
        assert len(controller.started) == 2


async def test_what_may_not_be_made_is_told_and_tried_again(kube_config, api, controller):
    api.forbid("create", JOBSETS)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: "cannot create resource" in reasons(admin))
        assert re.search(r"try \d+ at \d\d:", reasons(admin))
        api.allow_all()
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


@pytest.mark.parametrize("trouble", ["500", "503", "drop"])
async def test_a_cluster_in_trouble_is_told_and_loads_go_on(kube_config, api, controller, trouble):
    async with leading(kube_config, controller) as admin, ordinary(admin):
        api.fail(trouble)
        await admin.cell.publish(spec(replicas=2))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        await eventually(lambda: "Kubernetes" in reasons(admin))
        api.heal()
        await eventually(lambda: admin.cell.find(M).ready_replicas == 2)


async def test_an_answer_that_was_lost_makes_no_object_too_many(kube_config, api, controller):
    api.fail("lost", "create", times=3)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec(replicas=3))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 3)
        assert len(controller.started) == 3


async def test_objects_of_others_are_left_alone(kube_config, api, controller):
    ours = {"app.kubernetes.io/managed-by": "sax-admin-server", "sax.dev/cell": "test"}
    other_cell = {**ours, "sax.dev/cell": "prod"}
    of_prod = {"labels": other_cell, "annotations": {"sax.dev/model": "/sax/prod/m"}}
    by_hand = {"labels": {}, "annotations": {"sax.dev/model": M}}
    unmarked = {"labels": ours}
    disguised = {"labels": ours, "annotations": {"sax.dev/model": "/sax/prod/m"}}
    controller.paused = True
    for number, meta in enumerate((of_prod, by_hand, unmarked, disguised)):
        body = jobset(f"other-{number}")
        api.add(JOBSETS, {**body, "metadata": {**meta, "name": f"other-{number}"}})
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: len(api.names(JOBSETS)) == 5)
        await admin.cell.unpublish(M)
        await eventually(lambda: len(api.names(JOBSETS)) == 4)
        assert all(name.startswith("other-") for name in api.names(JOBSETS))


async def test_the_next_admin_server_adopts_what_is_there(kube_config, api, controller):
    async with leading(kube_config, controller) as first:
        await first.cell.publish(spec(replicas=2))
        await eventually(lambda: first.cell.find(M).ready_replicas == 2)
        names = api.names(JOBSETS)
    async with leading(kube_config, controller, QUICK) as second:
        await eventually(lambda: second.cell.find(M).ready_replicas == 2)
        listed = len(api.requests)
        await asyncio.sleep(QUICK.settle_s + 2 * QUICK.delete_s)
        await eventually(lambda: len(api.requests) > listed + 4)
        assert api.names(JOBSETS) == names == sorted(controller.started)
        await second.cell.unpublish(M)
        await eventually(lambda: not api.names(JOBSETS))


async def test_what_was_unpublished_while_nobody_led_is_given_back(kube_config, api, controller):
    meta = {
        "name": "slice-old-abcd-0",
        "labels": {"app.kubernetes.io/managed-by": "sax-admin-server", "sax.dev/cell": "test"},
        "annotations": {"sax.dev/model": "/sax/test/old"},
    }
    api.add(JOBSETS, {**jobset("slice", hosts=2), "metadata": meta})
    async with leading(kube_config, controller):
        await eventually(lambda: not api.names(JOBSETS))


async def test_an_object_that_failed_is_made_again_under_another_name(kube_config, api, controller):
    controller.paused = True
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: api.names(JOBSETS))
        (name,) = api.names(JOBSETS)
        failed = {"type": "Failed", "status": "True", "message": "no such image"}
        api.change(JOBSETS, name, {"status": {"conditions": [failed]}})
        await eventually(lambda: "no such image" in reasons(admin))
        controller.paused = False
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        await eventually(lambda: name not in api.names(JOBSETS))


async def test_an_object_that_kueue_gave_up_is_made_again_under_another_name(
    kube_config, api, controller
):
    api.install("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        (first,) = api.objects(JOBSETS)
        name, uid = first["metadata"]["name"], first["metadata"]["uid"]
        api.add("workloads.kueue.x-k8s.io", revoked("jobset-of-another", "other"))
        api.add("workloads.kueue.x-k8s.io", revoked("jobset-of-it", uid))
        api.change(JOBSETS, name, {"spec": {"suspend": True}, "status": None})
        await eventually(lambda: name not in api.names(JOBSETS))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        assert controller.started == [name, *api.names(JOBSETS)]
        assert any(REVOKED in event.text for event in admin.cell.recent_events.newest(50))


async def test_a_suspended_object_whose_queue_may_not_be_read_says_so(kube_config, api, controller):
    api.forbid("list", "workloads.kueue.x-k8s.io")
    controller.paused = True
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: api.names(JOBSETS))
        (name,) = api.names(JOBSETS)
        api.change(JOBSETS, name, {"spec": {"suspend": True}})
        await eventually(lambda: "workloads.kueue.x-k8s.io is forbidden" in reasons(admin))
        assert api.names(JOBSETS) == [name]


async def test_an_object_that_somebody_deleted_is_made_again(kube_config, api, controller):
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        api.remove(JOBSETS, api.names(JOBSETS)[0])
        await eventually(lambda: admin.cell.find(M).ready_replicas == 0)
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        assert len(controller.started) == 2


async def test_servers_of_an_object_that_is_gone_are_neither_named_nor_chosen(
    kube_config, api, controller
):
    controller.paths = ("gemma",)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: "has joined but was not chosen" in reasons(admin))
        ((name, server),) = controller.servers.items()
        controller.lingering = True  # it beats on, as a pod does that takes its time to end
        api.remove(JOBSETS, name)
        await eventually(lambda: not admin.cell.infos())
        server.paths = ("llama",)
        controller.paused = True
        beats = controller.beats
        await eventually(lambda: controller.beats > beats + 10)
        assert not admin.cell.infos()
        assert server.address not in reasons(admin)
        assert not server.calls


async def test_who_waits_is_told_of_the_object_that_is_on_its_way(kube_config, api, controller):
    controller.paused = True
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec(replicas=2))
        await eventually(lambda: reasons(admin).count("was created") == 2)
        assert "JobSet slice-m-" in reasons(admin)
        await admin.cell.update(replace(admin.cell.find(M).spec, replicas=1))
        await eventually(lambda: len(api.names(JOBSETS)) == 1)  # what never came goes


async def test_who_waits_is_told_what_keeps_the_pods(kube_config, api, controller):
    controller.paused = True
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: "0 of 2 pods are ready" in reasons(admin))
        labels = {"jobset.sigs.k8s.io/jobset-name": api.names(JOBSETS)[0]}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        why = {"type": "PodScheduled", "status": "False", "message": "no google.com/tpu left"}
        api.add("pods", {"metadata": {"name": "p0", "labels": labels}, "status": ready})
        api.add(
            "pods", {"metadata": {"name": "p1", "labels": labels}, "status": {"conditions": [why]}}
        )
        await eventually(lambda: "1 of 2 pods are ready: no google.com/tpu" in reasons(admin))
        api.forbid("list", "pods")
        await eventually(lambda: "its pods are not all ready" in reasons(admin))


async def test_deletion_in_the_foreground_is_waited_for(kube_config, api, controller):
    controller.paused = api.lingers = True
    async with leading(replace(kube_config, kubernetes_limit=1), controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: api.names(JOBSETS))
        (first,) = api.names(JOBSETS)
        await admin.cell.unpublish(M)
        await eventually(lambda: not api.names(JOBSETS) or not api.objects(JOBSETS))
        await admin.cell.publish(spec("n"))
        await eventually(lambda: api.names(JOBSETS))
        assert api.names(JOBSETS) != [first]


async def test_machines_that_cannot_serve_the_model_are_not_rented_again_and_again(
    kube_config, api, controller
):
    controller.paths = ("gemma",)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: "has joined but was not chosen" in reasons(admin))
        assert "no joined server serves llama" in reasons(admin)
        listed = len(api.requests)
        await eventually(lambda: len(api.requests) > listed + 10)
        assert len(controller.started) == 1 == len(api.names(JOBSETS))


async def test_a_model_that_is_too_large_for_a_slice_gets_a_larger_one(
    kube_config, api, controller
):
    controller.need = Need(devices=12, memory=1)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        await eventually(lambda: not api.names(JOBSETS))
        assert controller.holding(M) == api.names(LEADER_WORKER_SETS)
        assert [name.split("-")[0] for name in controller.started] == ["slice", "big"]


async def test_what_no_template_is_large_enough_for_is_given_back_and_told(
    kube_config, api, controller
):
    controller.need = Need(devices=64, memory=1)
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: "big has 16 devices, but 64 are needed" in reasons(admin))
        await eventually(lambda: not api.names(JOBSETS))
        listed = len(api.requests)
        await eventually(lambda: len(api.requests) > listed + 10)
        assert len(controller.started) == 1


async def test_a_model_scaled_to_zero_gives_its_machines_back_and_a_held_request_brings_them(
    kube_config, api, controller
):
    idle = ScalingTiming(up_s=0.1, down_s=0.2, idle_s=0.4)
    scaling = Autoscaling(min_replicas=0, max_replicas=2, target_queue=4)
    async with leading(replace(kube_config, scaling=idle), controller) as admin:
        await admin.cell.publish(spec(replicas=0, autoscaling=scaling))
        while not admin.cell.find(M).ready_replicas:
            told = admin.cell.demand(M, 1, "gateway")
            assert told.starting, told.reason
            await asyncio.sleep(0.02)
        admin.cell.demand(M, 0, "gateway")
        await eventually(lambda: not api.names(JOBSETS))
        assert len(controller.started) == 1
        assert admin.cell.demand(M, 1, "gateway").starting


async def test_figures_tell_of_objects_and_failures(kube_config, api, controller):
    async with leading(replace(kube_config, status_port=0), controller) as admin:
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{admin.status_port}/metrics"
            while True:
                text = (await client.get(url)).text
                if f'sax_admin_kubernetes_objects{{model="{M}",state="ready"}} 1.0' in text:
                    break
        assert "sax_admin_kubernetes_failing 0.0" in text
        kinds = [event.kind for event in admin.cell.recent_events.newest(50)]
        assert "asked-for" in kinds


async def test_templates_are_read_again_when_they_change(kube_config, api, controller):
    async with leading(kube_config, controller) as admin:
        await admin.cell.publish(spec(placement=Placement(tags=("spot",))))
        await eventually(lambda: "lacks the tag spot" in reasons(admin))
        file = Path(kube_config.kubernetes or "") / "slice.yaml"
        file.write_text("kind: Pod")
        await eventually(lambda: "slice.yaml is a None Pod" in reasons(admin))
        write(file.parent, jobset("slice", hosts=2, args=["--tags=spot"]))
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


async def test_bad_templates_end_the_start(kube_config, api):
    file = Path(kube_config.kubernetes or "") / "worse.yaml"
    file.write_text("kind: Pod")
    with pytest.raises(InvalidRequest, match=r"worse\.yaml is a None Pod: use a jobset"):
        async with running(kube_config):
            pass


async def test_no_cluster_ends_the_start(kube_config, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    with pytest.raises(InvalidRequest, match="finds no cluster"):
        async with running(kube_config):
            pass


async def test_a_client_that_is_not_installed_ends_the_start(kube_config, api, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightkube.config.client_adapter", None)
    with pytest.raises(InvalidRequest, match="pip install .lightkube"):
        async with running(kube_config):
            pass


@asynccontextmanager
async def ordinary(admin: Running) -> AsyncGenerator[FakeModelet]:
    """A model server that no object stands for, and that beats."""
    server = await FakeModelet().start()

    async def beat() -> None:
        while True:
            if not server.away:
                await server.join(admin.port)
            await asyncio.sleep(0.1)

    beating = asyncio.create_task(beat())
    try:
        yield server
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await server.stop()


async def test_who_does_not_lead_any_more_changes_nothing(kube_config, api):
    """Its view is old: another one may have unpublished, or asked for more."""
    folder = TemplateFolder(kube_config.kubernetes or "")
    short = CellActions((), {M: ModelReport("", (), frozenset(), 0)}, short={M: 1})
    outlook = Outlook(CellState("/sax/test", {M: spec()}), short, Seen())
    asked: list[bool] = []
    retired: list[frozenset[str]] = []

    async def leads() -> bool:
        asked.append(True)
        return False

    cluster = connect(None)
    provisioner = Provisioner(
        *(CellId("test"), cluster, folder, lambda: outlook, leads, retired.append, time.time),
        limit=9,
        events=CellEvents(time.time),
        timing=PROMPT,
    )
    await provisioner.run()  # it ends by itself
    await cluster.close()
    assert asked == [True]
    assert not api.objects(JOBSETS)


# Processes


@pytest.mark.extended
async def test_an_admin_process_that_is_killed_in_between_loses_nothing(tmp_path, api, controller):
    """Publish, kill -9, update, kill -9, unpublish: what is wanted stays, and the rest goes."""
    folder = write(tmp_path / "templates", jobset("slice", hosts=2))
    flags = ("--kubernetes", str(folder), "--kubernetes_namespace", "cell", "--beat_s", "0.2")
    model = admin_pb2.Model(
        model_id=M, model_path="llama", checkpoint_path="/one", requested_num_replicas=2
    )
    async with admin_process(tmp_path / "state", controller, *flags) as (server, stub):
        await stub.Publish(admin_pb2.PublishRequest(model=model))
        await until_ready(stub, 2)
        names = api.names(JOBSETS)
        assert len(names) == 2
        server.send_signal(signal.SIGKILL)
    async with admin_process(tmp_path / "state", controller, *flags) as (server, stub):
        await until_ready(stub, 2)
        assert api.names(JOBSETS) == names == sorted(controller.started)
        model.requested_num_replicas = 1
        await stub.Update(admin_pb2.UpdateRequest(model=model))
        server.send_signal(signal.SIGKILL)
    async with admin_process(tmp_path / "state", controller, *flags) as (server, stub):
        await eventually(lambda: len(api.names(JOBSETS)) == 1)
        await until_ready(stub, 1)
        assert controller.holding(M) == api.names(JOBSETS)
        await stub.Unpublish(admin_pb2.UnpublishRequest(model_id=M))
        await eventually(lambda: not api.objects(JOBSETS))
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0
    assert sorted(controller.started) == names  # nothing was made twice


@asynccontextmanager
async def admin_process(
    state: Path, controller: FakeController, *flags: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, admin_pb2_grpc.AdminStub]]:
    """A process of its own on free ports, which the servers of the cluster find."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "tests.admin_server.quick_admin", *flags),
        *("--port", "0", "--status_port", "0", "--fs_root", str(state)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    try:
        while line := (await server.stderr.readline()).decode():
            if told := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                break
        else:
            pytest.fail("the process ended before it listened")
        controller.port = int(told[1])
        async with open_channel(f"127.0.0.1:{controller.port}") as channel:
            yield server, admin_pb2_grpc.AdminStub(channel)
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()


async def until_ready(stub: admin_pb2_grpc.AdminStub, replicas: int) -> None:
    """So many replicas of the model are listed as ready."""
    while True:
        reply = await stub.List(admin_pb2.ListRequest(model_id=M))
        if [one.ready_replicas for one in reply.published_models] == [replicas]:
            return
        await asyncio.sleep(0.05)
