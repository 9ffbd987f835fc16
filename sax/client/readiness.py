"""Explains why a published model is not ready."""

from __future__ import annotations

from sax.errors import ModelNotReady
from sax.types import PublishedModel, ReplicaStatus, ServableStatus

RETRY_AFTER_S = 2.0  # roughly how often progress changes while a model loads


def not_ready(model: PublishedModel) -> ModelNotReady:
    return not_ready_because(model.spec.model_id, why_not(model))


def not_ready_because(model_id: str, why: str) -> ModelNotReady:
    return ModelNotReady(
        f"{model_id} is published, but no replica is ready: {why}", retry_after_s=RETRY_AFTER_S
    )


def why_not(model: PublishedModel) -> str:
    """Return the reason of the first replica that is not ready."""
    if not model.wanted_replicas:
        if model.scaling_reason:
            return model.scaling_reason
        return "0 replicas are wanted; update it to 1 or more"
    waiting = [r for r in model.replicas if r.status is not ServableStatus.LOADED]
    reasons = [reason for reason in map(_reason, waiting) if reason]
    if reasons:
        return reasons[0]
    if model.ready_replicas:
        return "one has just become ready"
    return "no model server has taken it yet"


def _reason(replica: ReplicaStatus) -> str:
    if replica.reason:
        return replica.reason
    if replica.progress is not None and replica.progress.total:
        progress = replica.progress
        return f"{progress.phase} {progress.done} of {progress.total} {progress.unit}".rstrip()
    if replica.progress is not None:
        return replica.progress.phase
    if replica.status is ServableStatus.NONE:
        return ""
    return f"{replica.status.value} on {replica.address}"
