"""Types of the replies of Saxml's routes, for their description."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CanaryReply(TypedDict):
    """A version that serves a part of the requests, beside the model's own."""

    version: str
    checkpoint: str
    overrides: dict[str, str]
    percent: float
    ready_replicas: int


class ListedModel(TypedDict):
    """One model; active_replicas are ready."""

    model: str
    model_path: str
    checkpoint: str
    max_replicas: int
    active_replicas: int
    reason: NotRequired[str]
    note: NotRequired[str]
    warnings: NotRequired[list[str]]
    canary: NotRequired[CanaryReply]


class PublishedReply(TypedDict):
    """Fields of the request that were sent."""

    model: str
    model_path: str
    checkpoint: str
    replicas: int
    overrides: NotRequired[dict[str, str]]
    revision: NotRequired[int]
    min_replicas: NotRequired[int | None]
    max_replicas: NotRequired[int | None]
    target_queue: NotRequired[float | None]


class NamedModel(TypedDict):
    model: str


class StartedCanary(TypedDict):
    model: str
    percent: float


class RolledBack(TypedDict):
    model: str
    version: str
