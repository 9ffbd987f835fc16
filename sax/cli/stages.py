"""Stages of a long wait: the phases and counts that progress bars and plain lines both show.

Pure: turns a published model into stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from sax.types import Progress, PublishedModel, ReplicaStatus, ServableStatus

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProgressStage:
    """One progress bar: a named thing in a phase. A `total` of 0 means unknown."""

    name: str
    phase: str
    done: int = 0
    total: int = 0
    unit: str = ""
    reason: str = ""  # what it waits for, if it cannot go on without that

    @property
    def text(self) -> str:
        """Phase and count: "compiling bucket 3 of 8", "reading weights 12 of 90 MiB"."""
        if not self.total:
            return self.phase
        if self.unit == "bytes":
            return f"{self.phase} {self.done // _MIB} of {self.total // _MIB} MiB"
        return f"{self.phase} {self.done} of {self.total} {self.unit}".rstrip()

    @property
    def told(self) -> str:
        return f"{self.text}: {self.reason}" if self.reason else self.text


def replica_stages(published: PublishedModel) -> list[ProgressStage]:
    wanted = published.wanted_replicas
    replicas = list(published.replicas)
    replicas += [ReplicaStatus("", ServableStatus.NONE)] * (wanted - len(replicas))
    return [_stage(published, number, replica) for number, replica in enumerate(replicas, 1)]


def _stage(published: PublishedModel, number: int, replica: ReplicaStatus) -> ProgressStage:
    name = published.spec.model_id
    if published.wanted_replicas > 1:
        name = f"{name} replica {number} of {published.wanted_replicas}"
    progress = replica.progress
    if replica.status is ServableStatus.LOADING and progress is not None:
        return ProgressStage(name, progress.phase, progress.done, progress.total, progress.unit)
    waits = replica.status is ServableStatus.NONE and not replica.address
    return ProgressStage(name, phase(replica), reason=replica.reason if waits else "")


def phase(replica: ReplicaStatus) -> str:
    """Return a replica's phase as `sax wait` words it, without the count."""
    match replica.status:
        case ServableStatus.LOADED:
            return "ready"
        case ServableStatus.FAILED:
            return "failed"
        case ServableStatus.UNLOADING:
            return "unloading"
        case ServableStatus.LOADING:
            return (replica.progress or Progress("starting")).phase
        case ServableStatus.NONE:
            return "starting" if replica.address else "waiting for a server"


def summary(published: PublishedModel) -> str:
    if not published.wanted_replicas:
        return "scaled to zero" if published.spec.autoscaling else "no replicas wanted"
    waiting = [stage for stage in replica_stages(published) if stage.phase != "ready"]
    failed = [stage for stage in waiting if stage.phase == "failed"]
    return (failed or waiting)[0].text if waiting else "ready"


def reason(published: PublishedModel) -> str:
    reasons = (replica.reason for replica in published.replicas)
    if not published.wanted_replicas:
        return published.scaling_reason
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def failure(published: PublishedModel) -> str | None:
    for replica in published.replicas:
        if replica.status is ServableStatus.FAILED:
            return replica.reason or "it failed to load and gave no reason"
    return None
