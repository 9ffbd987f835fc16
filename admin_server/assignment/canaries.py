"""Canaries: which of a model's replicas are to be of its canary's version. Pure.

The choice sticks: a server that has the canary, is loading it or failed to, keeps it. So a canary
that cannot be loaded costs one replica, and no other is unloaded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from admin_server.assignment.seen import SeenModel, is_current
from admin_server.ledger.state import CellState
from sax.canary import canary_replicas, canary_spec, replicas_with_canary
from sax.types import CanaryShare, ModelSpec


def with_canaries(wanted: CellState) -> CellState:
    """The state in which a lone replica with a canary has a second one beside it."""
    more = {
        model_id: replace(spec, replicas=count)
        for model_id, spec in wanted.models.items()
        if spec.canary is not None
        and (count := replicas_with_canary(spec.replicas, spec.canary)) != spec.replicas
    }
    return replace(wanted, models={**wanted.models, **more}) if more else wanted


def wanted_version(spec: ModelSpec) -> str:
    """Return the version that a report describes, with the canary's if there is one."""
    if spec.canary is None:
        return spec.version
    return f"{spec.version}+{spec.canary.version} at {spec.canary.percent:g}"


def variants(spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """The spec, and the canary's."""
    return (spec,) if spec.canary is None else (spec, canary_spec(spec, spec.canary))


def is_wanted(spec: ModelSpec, model: SeenModel, address: str) -> bool:
    """True if the server has the version of the model or that of its canary."""
    return any(model.has_current(address, each) for each in variants(spec))


def canary_targets(
    spec: ModelSpec, model: SeenModel, assigned: Sequence[str]
) -> dict[str, ModelSpec]:
    """The canary's spec, by address of the servers that are to have it."""
    if spec.canary is None:
        return {}
    canary = canary_spec(spec, spec.canary)
    count = canary_replicas(len(assigned), spec.canary.percent)
    ranked = sorted(assigned, key=lambda address: (_rank(spec, canary, model, address), address))
    return dict.fromkeys(ranked[:count], canary)


def canary_share(spec: ModelSpec, model: SeenModel, ready: Sequence[str]) -> CanaryShare | None:
    """Return the division of requests among ready replicas of several versions, which a canary
    leaves while it runs and after it was aborted or promoted; None if there is one version."""

    def share(version: str, percent: float) -> CanaryShare | None:
        there = frozenset(a for a in ready if version and model.held[a].version == version)
        return CanaryShare(version, percent, there) if there else None

    if spec.canary is not None:
        return share(spec.canary.version, spec.canary.percent)
    if (aborted := share(spec.aborted, 0.0)) is not None or not spec.promoted:
        return aborted
    promoted = share(spec.version, spec.promoted)
    if promoted is None or len(promoted.addresses) == len(ready):
        return None
    reached = 100.0 * len(promoted.addresses) / len(ready)
    return replace(promoted, percent=max(spec.promoted, reached))


def _rank(spec: ModelSpec, canary: ModelSpec, model: SeenModel, address: str) -> int:
    servable, load = model.held.get(address), model.load(address)
    if load is not None:
        return 0 if load.spec.version == canary.version else 3
    if servable is not None and servable.version == canary.version:
        return 0
    if model.failure(address, canary) is not None:
        return 1
    # Rather where nothing must be unloaded for it.
    return 3 if servable is not None and is_current(servable, spec) else 2
