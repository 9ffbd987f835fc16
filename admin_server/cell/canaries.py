"""Operators' calls on canaries: start, promote, abort. Each is durable when it returns."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from admin_server.ledger.ledger import Ledger
from admin_server.ledger.placement import loaded_overrides
from admin_server.ledger.records import Record, Update
from admin_server.ledger.state import CellState, check_settings
from admin_server.ledger.versions import check_revision
from sax.canary import canary_replicas, canary_spec, check_percent, replicas_with_canary
from sax.errors import InvalidRequest
from sax.format import count
from sax.types import Canary, ModelSpec

Commit = Callable[[Callable[[CellState], Record | None]], Awaitable[None]]


class Canaries:
    """The canaries of one cell. `check` returns a spec with its checkpoint pinned."""

    def __init__(
        self,
        ledger: Ledger,
        check: Callable[[ModelSpec, ModelSpec], Awaitable[ModelSpec]],
        commit: Commit,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._check = check
        self._commit = commit
        self._clock = clock

    async def start(
        self,
        model_id: str,
        checkpoint: str,
        overrides: Mapping[str, str],
        percent: float,
        *,
        revision: int = 0,
        by: str = "",
    ) -> str:
        """Start a canary, or give the running one another share; returns its version.

        Raises InvalidRequest and its subclasses, CheckpointError, ModelNotFound, StaleRevision,
        AdminUnavailable.
        """
        old = self._ledger.state.find(model_id)
        checkpoint = checkpoint or old.checkpoint
        running = old.canary
        if running is None or checkpoint != running.checkpoint or overrides != running.overrides:
            wanted = replace(old, checkpoint=checkpoint, overrides=overrides)
            checkpoint = (await self._check(wanted, old)).checkpoint
        version, at_s = uuid.uuid4().hex, self._clock()

        def make(state: CellState) -> Record | None:
            return canary_record(
                state,
                model_id,
                checkpoint,
                overrides,
                percent,
                revision=revision,
                version=version,
                at_s=at_s,
                by=by,
            )

        await self._commit(make)
        canary = self._ledger.state.find(model_id).canary
        return "" if canary is None else canary.version

    async def promote(self, model_id: str, *, by: str = "") -> str:
        """Roll a canary out to all replicas; returns its version, the one now wanted.

        Raises InvalidRequest for a model without a canary, ModelNotFound, AdminUnavailable.
        """
        return await self._end(promote_record, model_id, by)

    async def abort(self, model_id: str, *, by: str = "") -> str:
        """Go back from a canary; returns the version of the model, which stays. Raises as
        `promote`."""
        return await self._end(abort_record, model_id, by)

    async def _end(self, end: Callable[..., Update], model_id: str, by: str) -> str:
        at_s, wanted = self._clock(), ""

        def make(state: CellState) -> Record:
            nonlocal wanted
            record = end(state, model_id, at_s=at_s, by=by)
            wanted = record.spec.version
            return record

        await self._commit(make)
        return wanted


# Records that start, promote and abort a model's canary. Pure.
#
# A canary is part of the spec: it is as durable as the spec, and a new leader goes on with it. It
# becomes a version that one can roll back to once it is promoted.


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
