"""Rows of the pages of a cell: models, replicas, servers and servables as JSON values.

The gateway's /cell and the admin server's /status.json both have them, and each adds what only its
readers need; `cell_rows.js` draws them on both pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TypedDict

from sax.adapters import base_of
from sax.types import (
    Canary,
    JoinedServer,
    Progress,
    PublishedModel,
    ReplicaStatus,
    Rights,
    ServableInfo,
    ServableStatus,
)


class ShownProgress(TypedDict):
    phase: str
    done: int
    total: int
    unit: str


class ShownReplica(TypedDict):
    """One wanted replica; `address` is empty while no server was found for it."""

    address: str
    status: str
    reason: str
    note: str
    canary: bool
    progress: ShownProgress | None


class ShownCanary(TypedDict):
    """A version that serves a part of the requests, beside the model's own."""

    version: str
    checkpoint: str
    percent: float
    ready_replicas: int


class ShownModel(TypedDict):
    """One published model. `base`: the model that an adapter belongs to, "" for any other.
    `may_change`: null where the admin server does not tell."""

    model: str
    model_path: str
    checkpoint: str
    base: str
    version: str
    methods: list[str]
    wanted_replicas: int
    ready_replicas: int
    scaling_reason: str
    canary: ShownCanary | None
    may_change: bool | None
    replicas: list[ShownReplica]
    replicas_hidden: int


class ShownActivity(TypedDict):
    """Load of a model on one server. The last seven are totals since it was loaded there: the
    difference of two, by the time between them, is a rate. All 0: the server does not tell."""

    slots: int
    slots_used: int
    pages: int
    pages_used: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    answers_begun: int
    first_token_s: float
    answers_timed: int
    token_interval_s: float


class ShownServable(TypedDict):
    """One model on one server, as the server reports it."""

    model: str
    status: str
    reason: str
    memory: int
    kernels: str
    queued: int
    running: int
    arrived: int
    progress: ShownProgress | None
    activity: ShownActivity


class ShownServer(TypedDict):
    """One model server. Rates and latency are those of the last minute."""

    address: str
    chip_type: str
    chip_topology: str
    devices: int
    tags: list[str]
    memory_used: int
    memory_total: int
    seen_s_ago: float
    dormant: bool
    pending_requests: int
    successes_per_second: float
    errors_per_second: float
    mean_latency_s: float
    servables: list[ShownServable]


def model_row(model: PublishedModel, most_replicas: int, rights: Rights | None) -> ShownModel:
    """Return the row of a model, replicas that are not ready first. rights: the reader's, if they
    are known."""
    spec = model.spec
    replicas = sorted(model.replicas, key=lambda each: each.status is ServableStatus.LOADED)
    return {
        "model": spec.model_id,
        "model_path": spec.model_path,
        "checkpoint": spec.checkpoint,
        "base": base_of(spec),
        "version": spec.version,
        "methods": list(model.methods),
        "wanted_replicas": model.wanted_replicas,
        "ready_replicas": model.ready_replicas,
        "scaling_reason": model.scaling_reason,
        "canary": _canary_row(spec.canary, model.ready_canaries),
        "may_change": None if rights is None else rights.may_change(spec.model_id),
        "replicas": [_replica_row(each) for each in replicas[:most_replicas]],
        "replicas_hidden": max(0, len(replicas) - most_replicas),
    }


def _canary_row(canary: Canary | None, ready: int) -> ShownCanary | None:
    if canary is None:
        return None
    return {
        "version": canary.version,
        "checkpoint": canary.checkpoint,
        "percent": canary.percent,
        "ready_replicas": ready,
    }


def _replica_row(replica: ReplicaStatus) -> ShownReplica:
    return {
        "address": replica.address,
        "status": replica.status.value,
        "reason": replica.reason,
        "note": replica.note,
        "canary": replica.canary,
        "progress": _progress_row(replica.progress),
    }


def server_row(
    server: JoinedServer, now_s: float, servables: Iterable[ServableInfo]
) -> ShownServer:
    """Return the row of a server with these of its servables."""
    info, traffic = server.info, server.traffic
    return {
        "address": info.address,
        "chip_type": info.chip_type,
        "chip_topology": info.chip_topology,
        "devices": info.devices,
        "tags": list(info.tags),
        "memory_used": server.memory_used,
        "memory_total": info.memory_total,
        "seen_s_ago": round(max(0.0, now_s - server.last_seen_s), 1),
        "dormant": server.dormant,
        "pending_requests": traffic.pending,
        "successes_per_second": round(traffic.successes_per_second, 3),
        "errors_per_second": round(traffic.errors_per_second, 3),
        "mean_latency_s": round(traffic.mean_latency_s, 4),
        "servables": [servable_row(each) for each in servables],
    }


def servable_row(servable: ServableInfo) -> ShownServable:
    """Return the row of a model on one server."""
    activity: ShownActivity = asdict(servable.activity)  # pyright: ignore[reportAssignmentType]
    return {
        "model": servable.model_id,
        "status": servable.status.value,
        "reason": servable.reason,
        "memory": servable.memory,
        "kernels": servable.kernels,
        "queued": servable.queued,
        "running": servable.running,
        "arrived": servable.arrived,
        "progress": _progress_row(servable.progress),
        "activity": activity,
    }


def _progress_row(progress: Progress | None) -> ShownProgress | None:
    if progress is None:
        return None
    return {
        "phase": progress.phase,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
    }
