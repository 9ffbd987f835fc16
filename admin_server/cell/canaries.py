"""Operators' calls on canaries: start, promote, abort. Each is durable when it returns."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from admin_server.ledger.canaries import abort_record, canary_record, promote_record
from admin_server.ledger.ledger import Ledger
from admin_server.ledger.records import Record, Update
from admin_server.ledger.state import CellState
from sax.types import ModelSpec

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
