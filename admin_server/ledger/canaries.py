"""Records that start, promote and abort a model's canary. Pure.

A canary is part of the spec: it is as durable as the spec, and a new leader goes on with it. It
becomes a version that one can roll back to once it is promoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from admin_server.ledger.placement import loaded_overrides
from admin_server.ledger.records import Update
from admin_server.ledger.state import CellState, check_settings
from admin_server.ledger.versions import check_revision
from sax.canary import canary_replicas, canary_spec, check_percent, replicas_with_canary
from sax.errors import InvalidRequest
from sax.format import count
from sax.types import Canary, ModelSpec


def canary_record(
    state: CellState,
    model_id: str,
    checkpoint: str,
    overrides: Mapping[str, str],
    percent: float,
    *,
    revision: int = 0,
    version: str,
    at_s: float,
    by: str = "",
) -> Update | None:
    """Make the record of a new canary, or of a new share of the one there is; None if nothing
    changes. An empty checkpoint is the model's own.

    Raises InvalidRequest, ModelNotFound, StaleRevision.
    """
    old = state.find(model_id)
    check_revision(old, revision)
    check_percent(percent)
    checkpoint = checkpoint or old.checkpoint
    canary = Canary(version=version, checkpoint=checkpoint, overrides=overrides, percent=percent)
    running = old.canary
    if running is not None and _loads(canary) == _loads(running):
        canary = replace(running, percent=percent)
    elif running is not None:
        raise InvalidRequest(
            f"{model_id} has a canary already ({describe_canary(running)}), and one at a time is "
            f"enough: `sax promote {model_id}` or `sax abort {model_id}` it first",
            param="canary",
        )
    if canary == running:
        return None
    if _loads(canary) == (old.checkpoint, loaded_overrides(old.overrides)):
        raise InvalidRequest(
            f"the canary of {model_id} would load what the model loads already: give another "
            "checkpoint or other overrides",
            param="canary",
        )
    check_settings(canary_spec(old, canary))
    note = f"canary of {describe_canary(canary)}{_share_of_replicas(old, percent)}"
    return Update(replace(old, canary=canary, revision=0), at_s, by, note, "canary")


def promote_record(state: CellState, model_id: str, *, at_s: float, by: str = "") -> Update:
    """Raises ModelNotFound, InvalidRequest for a model without a canary."""
    old = state.find(model_id)
    canary = _running(old, "promote")
    note = f"from version {old.version} to its canary {canary.version}"
    new = replace(canary_spec(old, canary), promoted=canary.percent, revision=0)
    return Update(new, at_s, by, note, "promote")


def abort_record(state: CellState, model_id: str, *, at_s: float, by: str = "") -> Update:
    """Raises ModelNotFound, InvalidRequest for a model without a canary."""
    old = state.find(model_id)
    canary = _running(old, "abort")
    note = f"canary {canary.version} goes, version {old.version} stays"
    new = replace(old, canary=None, aborted=canary.version, revision=0)
    return Update(new, at_s, by, note, "abort")


def describe_canary(canary: Canary) -> str:
    return f"{canary.checkpoint} at {canary.percent:g} %"


def _share_of_replicas(spec: ModelSpec, percent: float) -> str:
    if spec.autoscaling is not None:
        return ""
    if spec.replicas == 1:
        return ", on a second replica: it needs one more server"
    share = canary_replicas(replicas_with_canary(spec.replicas, spec.canary), percent)
    return f", on {count(share, 'replica')} of {spec.replicas}" if share else ""


def _running(spec: ModelSpec, doing: str) -> Canary:
    if spec.canary is None:
        raise InvalidRequest(
            f"{spec.model_id} has no canary to {doing}: `sax update {spec.model_id} --checkpoint "
            "... --canary 10%` starts one",
            param="model",
        )
    return spec.canary


def _loads(canary: Canary) -> tuple[str, dict[str, str]]:
    return canary.checkpoint, loaded_overrides(canary.overrides)
