"""Where a long wait stands, in words and counts: what progress bars and plain lines both show.

Pure: turns a published model into stages. Knows nothing of terminals.
"""

from __future__ import annotations

from dataclasses import dataclass

from sax.types import Progress, PublishedModel, ReplicaStatus, ServableStatus

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """One bar: a named thing that is in a phase. `total` 0 means that no count is known."""

    name: str
    phase: str
    done: int = 0
    total: int = 0
    unit: str = ""
    reason: str = ""  # what it waits for, where only that will help

    @property
    def text(self) -> str:
        """The phase with its count: "compiling bucket 3 of 8", "reading weights 12 of 90 MiB"."""
        if not self.total:
            return self.phase
        if self.unit == "bytes":
            return f"{self.phase} {self.done // _MIB} of {self.total // _MIB} MiB"
        return f"{self.phase} {self.done} of {self.total} {self.unit}".rstrip()

    @property
    def told(self) -> str:
        """The text, and what is waited for."""
        return f"{self.text}: {self.reason}" if self.reason else self.text


def replica_stages(published: PublishedModel) -> list[Stage]:
    """One stage per wanted replica."""
    wanted = published.wanted_replicas
    replicas = list(published.replicas)
    replicas += [ReplicaStatus("", ServableStatus.NONE)] * (wanted - len(replicas))
    return [_stage(published, number, replica) for number, replica in enumerate(replicas, 1)]


def _stage(published: PublishedModel, number: int, replica: ReplicaStatus) -> Stage:
    name = published.spec.model_id
    if published.wanted_replicas > 1:
        name = f"{name} replica {number} of {published.wanted_replicas}"
    progress = replica.progress
    if replica.status is ServableStatus.LOADING and progress is not None:
        return Stage(name, progress.phase, progress.done, progress.total, progress.unit)
    waits = replica.status is ServableStatus.NONE and not replica.address
    return Stage(name, phase(replica), reason=replica.reason if waits else "")


def phase(replica: ReplicaStatus) -> str:
    """A replica's phase in the words of `sax wait`, without its count."""
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
    """The state of a whole model: that of its first replica that is not ready, or "ready"."""
    if not published.wanted_replicas:
        return "scaled to zero" if published.spec.autoscaling else "no replicas wanted"
    waiting = [stage for stage in replica_stages(published) if stage.phase != "ready"]
    return waiting[0].text if waiting else "ready"


def reason(published: PublishedModel) -> str:
    """Why the model is not wholly ready, in the admin's words; empty when it is."""
    reasons = (replica.reason for replica in published.replicas)
    if not published.wanted_replicas:
        return published.scaling_reason
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def failure(published: PublishedModel) -> str | None:
    """The reason of a replica that failed to load, None while none has."""
    for replica in published.replicas:
        if replica.status is ServableStatus.FAILED:
            return replica.reason or "it failed to load and gave no reason"
    return None
