"""A cluster whose JobSets Kueue queues, as values in memory: for stories on the virtual clock.

Plays the API server, Kueue and the servers. A JobSet is suspended until its Workload is admitted;
one whose capacity is taken back is suspended for good, and its Workload deactivated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from admin_server.assignment.plan import CellActions, Outlook
from admin_server.assignment.report import ModelReport
from admin_server.assignment.seen import Seen, SeenServer
from admin_server.ledger.state import CellState
from admin_server.provisioning.cluster import JOBSET, Body, ObjectKind
from admin_server.provisioning.present import OWNER_UID, WORKLOADS
from sax.types import (
    JoinedServer,
    ModelSpec,
    ReplicaStatus,
    ServableInfo,
    ServableStatus,
    ServerInfo,
)
from tests.virtual_loop import now

REVOKED = "AdmissionCheck sax-flex-start: the capacity was revoked"


def workload(name: str, uid: str, *, active: bool = True, **status: Any) -> dict[str, Any]:
    """As Kueue makes one for an object of this uid."""
    return {
        "metadata": {"name": name, "labels": {OWNER_UID: uid}},
        "spec": {"active": active, "queueName": "sax"},
        "status": status,
    }


def condition(kind: str, reason: str = "", message: str = "", status: str = "True") -> Body:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def revoked(name: str, uid: str) -> dict[str, Any]:
    """A Workload that Kueue deactivated, as it is once its JobSet is suspended again."""
    why = condition("Evicted", "DeactivatedDueToAdmissionCheck", REVOKED)
    return workload(name, uid, active=False, conditions=[why])


class QueuedCluster:
    """A `Cluster`. `made` and `deleted` are names of JobSets, in order."""

    def __init__(self) -> None:
        self.jobsets: dict[str, dict[str, Any]] = {}
        self.workloads: dict[str, dict[str, Any]] = {}  # by the uid of the JobSet
        self.made: list[str] = []
        self.deleted: list[str] = []

    # What Kueue does

    def admit(self, name: str) -> None:
        self.jobsets[name]["spec"]["suspend"] = False
        jobs = self.jobsets[name]["spec"]["replicatedJobs"]
        told = [{"name": job["name"], "ready": 1} for job in jobs]
        self.jobsets[name]["status"] = {"replicatedJobsStatus": told}

    def revoke(self, name: str) -> None:
        thing = self.jobsets[name]
        thing["spec"]["suspend"], thing["status"] = True, {}
        uid = thing["metadata"]["uid"]
        self.workloads[uid] = revoked(f"jobset-{name}", uid)

    # What the admin server asks

    async def objects(
        self, kind: ObjectKind, labels: Mapping[str, str | Sequence[str]]
    ) -> Sequence[Body]:
        things = {JOBSET: self.jobsets, WORKLOADS: self.workloads}.get(kind, {})
        return deepcopy([each for each in things.values() if _has(each, labels)])

    async def create(self, kind: ObjectKind, body: Body) -> Body:
        thing, name = deepcopy(dict(body)), str(body["metadata"]["name"])
        uid = f"uid-{len(self.made)}"
        created = datetime.fromtimestamp(now(), UTC).isoformat()
        thing["metadata"] |= {"uid": uid, "creationTimestamp": created}
        thing["spec"]["suspend"] = True
        self.jobsets[name], self.workloads[uid] = thing, workload(f"jobset-{name}", uid)
        self.made.append(name)
        return deepcopy(thing)

    async def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        del self.workloads[self.jobsets.pop(name)["metadata"]["uid"]]
        self.deleted.append(name)

    async def close(self) -> None:
        pass

    # What the cell sees

    def outlook(self, spec: ModelSpec) -> Outlook:
        """Every JobSet that runs has a server, which has the model loaded."""
        model_id = spec.model_id
        held = (ServableInfo(model_id=model_id, status=ServableStatus.LOADED),)
        running = [name for name, each in self.jobsets.items() if not each["spec"]["suspend"]]
        servers = {
            f"{name}:1": SeenServer(
                JoinedServer(ServerInfo(address=f"{name}:1", tags=(f"set:{name}",)), now(), held)
            )
            for name in running
        }
        replicas = tuple(ReplicaStatus(each, ServableStatus.LOADED) for each in servers)
        report = ModelReport(spec.version, replicas, frozenset(servers), len(servers))
        missing = spec.replicas - len(servers)
        short = {model_id: missing} if missing > 0 else {}
        plan = CellActions((), {model_id: report}, short=short)
        return Outlook(CellState("/sax/test", {model_id: spec}), plan, Seen(servers))


def _has(thing: Body, labels: Mapping[str, str | Sequence[str]]) -> bool:
    own = thing["metadata"].get("labels", {})
    return all(
        own.get(name) == value if isinstance(value, str) else own.get(name) in value
        for name, value in labels.items()
    )
