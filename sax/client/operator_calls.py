"""Operators' calls of a cell's client: publish, update, list, wait and watch, all on the admin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from sax.canary import canary_spec, check_percent
from sax.client.admin import Admin
from sax.client.history import merging
from sax.client.watch import WatchEvent, follow
from sax.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    NotFound,
    SaxError,
)
from sax.names import CellId, ModelId, check_checkpoint, check_model_path, nearest
from sax.proto import admin_pb2, cell_pb2
from sax.scaling import Scaling, check_replicas, settle
from sax.types import (
    CellStats,
    JoinedServer,
    ModelSpec,
    Overview,
    PublishedModel,
    ReplicaStatus,
    Rights,
    ServableStatus,
)
from sax.wire.models import decode_models, encode_spec
from sax.wire.servers import decode_joined, decode_stats

_WAIT_ROUND_S = 30.0  # per WaitForReady call; longer waits take several

Models = list[PublishedModel]
Servers = list[JoinedServer]
RETRY_AFTER_S = 2.0  # roughly how often progress changes while a model loads


class OperatorCalls:
    """Mixin: operators' calls, all on the admin."""

    _admin: Admin

    async def publish(
        self,
        model_id: str,
        model_path: str,
        checkpoint: str,
        replicas: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        autoscaling: Scaling | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Publish a model; returns once that is durable, and replicas load afterwards.

        Override values are JSON. With `autoscaling`, `replicas` is the initial number.

        Raises ModelExists, InvalidName, InvalidRequest, AdminUnavailable.
        """
        spec = ModelSpec(
            model_id=str(ModelId.parse(model_id)),
            model_path=check_model_path(model_path),
            checkpoint=check_checkpoint(checkpoint),
            replicas=check_replicas(replicas),
            overrides=dict(overrides or {}),
            autoscaling=settle(autoscaling, None, replicas),
        )
        request = admin_pb2.PublishRequest(model=encode_spec(spec))
        await self._admin.change("Publish", request, admin_pb2.PublishResponse, timeout_s)

    async def update(
        self,
        model_id: str,
        *,
        model_path: str | None = None,
        checkpoint: str | None = None,
        replicas: int | None = None,
        overrides: Mapping[str, str] | None = None,
        acls: Mapping[str, str] | None = None,
        admin_acl: str | None = None,
        revision: int | None = None,
        autoscaling: Scaling | None = None,
        canary: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Change the given fields and keep the rest; reloads only if what is loaded changes.

        The model path cannot change: another one is an error. Concurrent updates of different
        fields are merged. With a `revision` (from `list`), only that revision is changed:
        StaleRevision if another change came first. `autoscaling="off"` returns to the fixed number
        of replicas.

        canary: percentage of the requests that the new checkpoint or overrides get, on a part of
        the replicas, until `promote` or `abort`. With a canary running and neither of these given,
        it changes its percentage. Raises InvalidRequest for a second canary, and for fields that
        are not loaded: change these in an update of their own.
        """
        if revision is not None and not 0 < revision < 2**63:
            raise InvalidRequest(
                f"revision is {revision}; it must be one from `list`, 1 or more",
                param="revision",
            )

        if canary is not None:
            others = (model_path, replicas, acls, admin_acl, autoscaling)
            if any(each is not None for each in others):
                raise InvalidRequest(
                    "a canary changes only what is loaded, its checkpoint and overrides: change "
                    "the rest in an update of its own",
                    param="canary",
                )
            check_percent(canary)

        async def merge_and_write() -> None:
            old = (await self.list(model_id, timeout_s=timeout_s)).spec
            if canary is not None:
                request = _canary(old, checkpoint, overrides, canary, revision)
                reply = cell_pb2.CanaryResponse
                await self._admin.change("Cell/Canary", request, reply, timeout_s)
                return
            spec = replace(
                old,
                model_path=old.model_path if model_path is None else check_model_path(model_path),
                checkpoint=old.checkpoint if checkpoint is None else check_checkpoint(checkpoint),
                replicas=old.replicas if replicas is None else check_replicas(replicas),
                overrides=old.overrides if overrides is None else dict(overrides),
                acls=old.acls if acls is None else dict(acls),
                admin_acl=old.admin_acl if admin_acl is None else admin_acl,
                autoscaling=settle(
                    autoscaling, old.autoscaling, old.replicas if replicas is None else replicas
                ),
                revision=old.revision if revision is None else revision,
            )
            request = admin_pb2.UpdateRequest(model=encode_spec(spec))
            await self._admin.change("Update", request, admin_pb2.UpdateResponse, timeout_s)

        await (merging(merge_and_write) if revision is None else merge_and_write())

    async def unpublish(self, model_id: str, *, timeout_s: float | None = None) -> None:
        """Unpublish a model; returns once durable, replicas unload after. Raises ModelNotFound."""
        request = admin_pb2.UnpublishRequest(model_id=str(ModelId.parse(model_id)))
        await self._admin.change("Unpublish", request, admin_pb2.UnpublishResponse, timeout_s)

    async def list(self, model_id: str, *, timeout_s: float | None = None) -> PublishedModel:
        """Return one model with its replicas. Raises ModelNotFound with the nearest names."""
        ModelId.parse(model_id)
        try:
            reply = await self._list(model_id, timeout_s)
        except ModelNotFound:
            raise
        except NotFound as exc:  # an admin that does not send our error classes
            raise await self._unknown(model_id) from exc
        if not reply.published_models:
            raise await self._unknown(model_id)
        return decode_models(reply)[0]

    async def list_all(self, cell: str | None = None, *, timeout_s: float | None = None) -> Models:
        """List the models of a cell (/sax/<cell>; None: the admin's own)."""
        reply = await self._list(_cell(cell), timeout_s)
        return decode_models(reply)

    async def cell_acl(self, *, timeout_s: float | None = None) -> str:
        """Return who may do everything in the cell, by --admin_acl and `set_cell_acl`: names, * for
        everyone who is known, "" for nobody or where nobody is asked."""
        request, answer = cell_pb2.CellAclRequest(), cell_pb2.CellAclResponse
        return (await self._admin.read("Cell/CellAcl", request, answer, timeout_s)).admin_acl

    async def set_cell_acl(self, acl: str, *, timeout_s: float | None = None) -> None:
        """Replace who may do everything in the cell beside those of --admin_acl; "": nobody.

        Raises InvalidRequest, UnsupportedParameter where nobody is asked who they are.
        """
        request = cell_pb2.SetCellAclRequest(admin_acl=acl)
        answer = cell_pb2.SetCellAclResponse
        await self._admin.change("Cell/SetCellAcl", request, answer, timeout_s)

    async def servers(self, cell: str | None = None, *, timeout_s: float | None = None) -> Servers:
        """List the joined model servers of a cell (None: the admin's own)."""
        reply = await self._list(_cell(cell), timeout_s)
        return [decode_joined(server) for server in reply.servers]

    async def overview(self, *, timeout_s: float | None = None) -> Overview:
        """Return the models and the servers of the admin's cell, as they were at one time."""
        reply = await self._list("", timeout_s)
        return Overview(
            tuple(decode_models(reply)),
            tuple(map(decode_joined, reply.servers)),
        )

    async def rights(self, *, timeout_s: float | None = None) -> Rights:
        """Return the changes that the caller may make.

        Raises UnsupportedParameter if the admin does not tell: an older one, or Saxml's.
        """
        answer = cell_pb2.RightsResponse
        reply = await self._admin.read("Cell/Rights", cell_pb2.RightsRequest(), answer, timeout_s)
        return Rights(reply.publish, frozenset(reply.models))

    async def stats(self, name: str = "", *, timeout_s: float | None = None) -> CellStats:
        """Statistics of a model, a cell, or ("") everything this admin knows."""
        request = admin_pb2.StatsRequest(model_id=name)
        reply = await self._admin.read("Stats", request, admin_pb2.StatsResponse, timeout_s)
        return decode_stats(reply)

    async def wait_for_ready(
        self, model_id: str, replicas: int = 1, timeout_s: float | None = None
    ) -> None:
        """Wait until at least `replicas` replicas are ready.

        Raises DeadlineExceeded with the reason they are not, ModelNotFound.
        """
        ModelId.parse(model_id)
        request = admin_pb2.WaitForReadyRequest(
            model_id=model_id, num_replicas=check_replicas(replicas)
        )
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            round_s = _WAIT_ROUND_S if end is None else min(_WAIT_ROUND_S, end - loop.time())
            try:
                if round_s > 0:
                    await self._admin.read(
                        "WaitForReady", request, admin_pb2.WaitForReadyResponse, round_s
                    )
                    return
            except DeadlineExceeded:
                pass
            if end is not None and loop.time() >= end:
                why = why_not(await self.list(model_id))
                raise DeadlineExceeded(f"{model_id} is not ready after {timeout_s:g} s: {why}")

    async def watch(self, model_id: str) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes to the ready replicas, indefinitely; survives restarts of the admin.

        Raises ModelNotFound if the model is not published, or once it is unpublished.
        """
        ModelId.parse(model_id)
        try:
            async with aclosing(follow(self._admin, model_id)) as answers:
                async for _, events in answers:
                    for event in events:
                        yield event
        except NotFound as exc:
            raise await self._explain(model_id) from exc

    async def _list(self, name: str, timeout_s: float | None) -> admin_pb2.ListResponse:
        request = admin_pb2.ListRequest(model_id=name)
        return await self._admin.read("List", request, admin_pb2.ListResponse, timeout_s)

    async def _explain(self, model_id: str) -> SaxError:
        try:
            return not_ready(await self.list(model_id))
        except SaxError as error:
            return error

    async def _unknown(self, model_id: str) -> ModelNotFound:
        known = [model.spec.model_id for model in await self.list_all()]
        near = nearest(model_id, known)
        hint = f"the nearest names are {', '.join(near)}" if near else "`sax ls` shows which are"
        return ModelNotFound(f"{model_id} is not published; {hint}", param="model")


def _canary(
    old: ModelSpec,
    checkpoint: str | None,
    overrides: Mapping[str, str] | None,
    percent: float,
    revision: int | None,
) -> cell_pb2.CanaryRequest:
    """The new canary, or the running one with another share if nothing else is given."""
    goes_on = old.canary is not None and checkpoint is None and overrides is None
    base = canary_spec(old, old.canary) if goes_on and old.canary else old
    return cell_pb2.CanaryRequest(
        model_id=old.model_id,
        checkpoint_path=base.checkpoint if checkpoint is None else check_checkpoint(checkpoint),
        overrides=base.overrides if overrides is None else overrides,
        percent=percent,
        revision=old.revision if revision is None else revision,
    )


def _cell(cell: str | None) -> str:
    return "" if cell is None else str(CellId.parse(cell))


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
