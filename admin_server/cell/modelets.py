"""gRPC calls to the model servers of a cell, over one connection to each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

import grpc.aio

from admin_server.assignment.seen import Action, LoadAction, UpdateAcls
from admin_server.ledger.limits import check_server
from admin_server.ledger.placement import bare, loaded_overrides
from sax.config import check_address
from sax.errors import (
    CheckpointNotFound,
    CheckpointUnreachable,
    InvalidName,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    NotLeading,
    NotLoaded,
    PermissionDenied,
    ReplicaLost,
    SaxError,
    Unauthenticated,
    Unavailable,
)
from sax.flags.last_lines import LogLine
from sax.overrides.known_paths import check_names, unknown_path
from sax.proto import common_pb2, control_pb2, modelet_pb2
from sax.references import parse_reference
from sax.types import ModelSpec, PublishedModel, ServableStatus, ServerInfo, ServerStatus, Traffic
from sax.weights import ReplicaWeights, WeightAction, WeightChange, next_version
from sax.wire.models import encode_load
from sax.wire.records import decode_log
from sax.wire.rpc import Reply, open_channel
from sax.wire.rpc import call as call_once
from sax.wire.servers import decode_status
from sax.wire.weights import decode_replica, encode_weights

_log = logging.getLogger(__name__)

_STATUS_TIMEOUT_S = 5.0
_ACLS_TIMEOUT_S = 30.0
_CONTROL_TIMEOUT_S = 2.0  # an operator waits for a check
_HUB_TIMEOUT_S = 7.0  # for one that asks a hub; clients wait for 10 s
# Rates cover the last minute, and percentiles cost the server a sort per method.
_POLLS_PER_TRAFFIC = 10


class Modelets(Protocol):
    """Calls the reconciler makes to model servers. All but `close` raise SaxError."""

    async def status(self, address: str) -> ServerStatus: ...

    async def carry_out(self, action: Action) -> None:
        """Return once the model is loaded, unloaded or has its new ACLs."""
        ...

    async def dispute(self, address: str, term: int) -> None:
        """Have a server obey this leader instead of the one of this term, which does not lead."""
        ...

    async def check(self, address: str, spec: ModelSpec) -> str:
        """Return the checkpoint to record, "" for the one given.

        Raises InvalidRequest or CheckpointError if no load of the spec there can succeed.
        """
        ...

    async def weights(self, address: str, change: WeightChange) -> ReplicaWeights:
        """Change the weights of a model there, and return what they are then."""
        ...

    async def log(self, address: str) -> list[LogLine]:
        """Return the last lines that a server logged, the newest last."""
        ...

    async def close(self, address: str) -> None: ...


class GrpcModelets:
    """Modelets over gRPC; a connection opens on the first call to a server.

    Every call carries this leader's term: servers refuse terms older than one they have seen.
    """

    def __init__(self, term: int = 0) -> None:
        self._term = term
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._traffic: dict[str, tuple[int, Traffic]] = {}  # polls since it was last fetched
        self._refused_by: set[str] = set()

    async def status(self, address: str) -> ServerStatus:
        try:
            status = await self._status(address)
        except (Unauthenticated, PermissionDenied) as exc:
            if address not in self._refused_by:  # does not go away by itself: log it once
                _log.warning("%s", exc.text)
            self._refused_by.add(address)
            raise
        self._refused_by.discard(address)
        return status

    async def _status(self, address: str) -> ServerStatus:
        age, traffic = self._traffic.get(address, (_POLLS_PER_TRAFFIC, Traffic()))
        asking = age >= _POLLS_PER_TRAFFIC
        request = modelet_pb2.GetStatusRequest(
            include_failure_reasons=True, include_method_stats=asking, term=self._term
        )
        reply = await call(
            self._channel(address),
            "/sax.Modelet/GetStatus",
            request,
            modelet_pb2.GetStatusResponse,
            peer=f"the model server {address}",
            timeout_s=_STATUS_TIMEOUT_S,
            unavailable=ReplicaLost,
        )
        status = decode_status(reply)
        if not asking:
            status = replace(status, traffic=traffic)
        self._traffic[address] = (1 if asking else age + 1, status.traffic)
        return status

    async def carry_out(self, action: Action) -> None:
        channel, peer = self._channel(action.address), f"the model server {action.address}"
        # No deadline: a large model takes many minutes to load. A server that dies breaks the
        # connection, and one that hangs stops answering GetStatus and is dropped.
        if isinstance(action, UpdateAcls):
            acls = _update_loaded(action.spec)
            acls.term = self._term
            taken, limit_s = modelet_pb2.UpdateLoadedResponse, _ACLS_TIMEOUT_S
            await call(
                channel, "/sax.Modelet/UpdateLoaded", acls, taken, peer=peer, timeout_s=limit_s
            )
            return
        if isinstance(action, LoadAction):
            # Placement overrides are for this admin server; a model server would refuse them.
            ours = loaded_overrides(action.spec.overrides)
            load = encode_load(replace(action.spec, overrides=ours))
            load.term = self._term
            reply = modelet_pb2.LoadResponse
            await call(channel, "/sax.Modelet/Load", load, reply, peer=peer, timeout_s=None)
            return
        unload = modelet_pb2.UnloadRequest(model_key=action.model_id, term=self._term)
        gone = modelet_pb2.UnloadResponse
        with contextlib.suppress(NotFound, NotLoaded):  # already unloaded
            await call(channel, "/sax.Modelet/Unload", unload, gone, peer=peer, timeout_s=None)

    async def dispute(self, address: str, term: int) -> None:
        request = control_pb2.DisputeRequest(term=self._term, disputed_term=term)
        await self._control(address, "Dispute", request, control_pb2.DisputeResponse)

    async def check(self, address: str, spec: ModelSpec) -> str:
        fetched = bool(spec.checkpoint) and parse_reference(spec.checkpoint) is not None
        request = control_pb2.CheckRequest(
            model_path=spec.model_path,
            overrides=loaded_overrides(spec.overrides),
            checkpoint=spec.checkpoint if fetched else "",
        )
        limit_s = _HUB_TIMEOUT_S if fetched else _CONTROL_TIMEOUT_S
        reply = await self._control(
            address, "Check", request, control_pb2.CheckResponse, timeout_s=limit_s
        )
        return reply.checkpoint

    async def weights(self, address: str, change: WeightChange) -> ReplicaWeights:
        # No deadline: answers that have begun may have to end first, as with a load.
        request = encode_weights(change, self._term)
        answer = control_pb2.ReplicaWeights
        return decode_replica(
            await self._control(address, "Weights", request, answer, timeout_s=None)
        )

    async def log(self, address: str) -> list[LogLine]:
        request, answer = control_pb2.LogRequest(), control_pb2.LogResponse
        return decode_log(await self._control(address, "Log", request, answer))

    async def _control(
        self,
        address: str,
        method: str,
        request: Any,
        reply: type[Reply],
        *,
        timeout_s: float | None = _CONTROL_TIMEOUT_S,
    ) -> Reply:
        return await call(
            self._channel(address),
            f"/sax.Control/{method}",
            request,
            reply,
            peer=f"the model server {address}",
            timeout_s=timeout_s,
        )

    async def close(self, address: str) -> None:
        self._traffic.pop(address, None)
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]


def is_lasting(exc: SaxError) -> bool:
    """True if no retry can succeed: an override was refused, or a hub has no such checkpoint."""
    if isinstance(exc, CheckpointNotFound):
        return True
    param = exc.param or ""
    bad_name = isinstance(exc, InvalidName) and param == "checkpoint"
    return bad_name or (isinstance(exc, InvalidRequest) and param.startswith("overrides."))


def _update_loaded(spec: ModelSpec) -> modelet_pb2.UpdateLoadedRequest:
    # Without a checkpoint the server reloads nothing, whatever version it has.
    acls = common_pb2.AccessControlLists(items=spec.acls)
    return modelet_pb2.UpdateLoadedRequest(model_key=spec.model_id, acls=acls)


async def call(
    channel: grpc.aio.Channel, path: str, request: Any, reply: type[Reply], **settings: Any
) -> Reply:
    """Make one call; explain an authentication failure in plain words."""
    try:
        return await call_once(channel, path, request, reply, **settings)
    except (Unauthenticated, PermissionDenied) as exc:
        raise type(exc)(
            f"{settings['peer']} refuses this admin server: {exc.text}. Start the admin server "
            "with SAX_TOKEN, SAX_TOKEN_FILE or SAX_TLS_CERT of a principal in the --admin_acl of "
            "the model server"
        ) from exc


# A model server that joins: is it one, and is it where it says?
#
# Clients are sent to its address, and models are placed there, so a wrong one is refused before
# anybody believes it.

_REMEDY = "start it with --advertise HOST, by which this admin server reaches it"


def check_joining(info: ServerInfo) -> None:
    """Raise InvalidRequest for impossible values."""
    check_address(info.address, "address")
    if info.data_address:
        check_address(info.data_address, "data_address")
    check_server(info)


async def dial_back(modelets: Modelets, info: ServerInfo) -> None:
    """Ask the server for its status at the address that it gives.

    Raises Unavailable if no model server answers there, InvalidRequest if another one does. One
    that refuses to talk is there: later polls tell why it does.
    """
    try:
        status = await modelets.status(info.address)
    except (Unauthenticated, PermissionDenied, NotLeading):
        return
    except SaxError as exc:
        raise Unavailable(
            f"{info.address}, where this model server says that it is, does not answer as one "
            f"({exc.text}): {_REMEDY}",
            param="address",
        ) from exc
    if status.incarnation and info.incarnation not in ("", status.incarnation):
        raise InvalidRequest(
            f"another model server answers at {info.address}: {_REMEDY}", param="address"
        )


# Check a spec before it is acknowledged, where somebody can judge it.
#
# The model servers know their models and reach the hubs that checkpoints come from, this admin
# server does neither: one that could load the model is asked. Where none has joined, the names of
# overrides are compared with those that sax's own models take. What nobody could judge is
# accepted, and a load that fails says why.


async def check_spec(
    modelets: Modelets,
    spec: ModelSpec,
    infos: Sequence[ServerInfo],
    silent: Collection[str],
    old: ModelSpec | None = None,
) -> ModelSpec:
    """Return the spec to record: what a hub has is named with its commit, for every replica.

    old: the spec that this one replaces. Raises InvalidRequest naming the override with which no
    load can succeed, CheckpointError for a checkpoint that cannot be fetched.
    """
    new = old is None or old.checkpoint != spec.checkpoint
    fetched = new and parse_reference(spec.checkpoint) is not None
    server, overrides = knowing_server(spec, infos, silent), loaded_overrides(spec.overrides)
    if server is None:
        check_names(spec.model_path, overrides)
    if server is None or not (fetched or overrides):
        return spec
    try:
        pinned = await modelets.check(server, spec if fetched else replace(spec, checkpoint=""))
    except SaxError as exc:
        if is_lasting(exc) or isinstance(exc, CheckpointUnreachable):
            raise
        # It is busy, gone, or of a version that checks nothing.
        _log.info("the spec of %s was not checked: %s", spec.model_id, exc.text)
        return spec
    return replace(spec, checkpoint=pinned) if fetched and pinned else spec


def unjudged(spec: ModelSpec, infos: Sequence[ServerInfo]) -> tuple[str, ...]:
    """Return a warning of a model that neither a server that has joined nor sax itself knows."""
    why = unknown_path(spec.model_path)
    return (why,) if why and knowing_server(spec, infos, ()) is None else ()


def knowing_server(
    spec: ModelSpec, infos: Sequence[ServerInfo], silent: Collection[str]
) -> str | None:
    """A server that serves the model path and answers, if there is one."""
    path = bare(spec.model_path)
    return next(
        (
            info.address
            for info in infos
            if info.address not in silent and path in map(bare, info.model_paths)
        ),
        None,
    )


_NUMBERED = (WeightAction.UPDATE, WeightAction.WAKE)  # bring weights of another version


class WeightsOfReplicas:
    """The weights of one cell's models. Nothing of them is recorded: a replica that starts anew has
    the checkpoint that its model is published with."""

    def __init__(self, find: Callable[[str], PublishedModel], modelets: Modelets) -> None:
        self._find = find
        self._modelets = modelets

    async def change(self, change: WeightChange) -> list[ReplicaWeights]:
        """Ask all ready replicas, and return what each of them has then.

        Raises ModelNotFound, ModelNotReady, and the replicas' error if none of them changed.
        """
        model = self._find(change.model_id)
        ready = [each.address for each in model.replicas if each.status is ServableStatus.LOADED]
        if not ready:
            raise ModelNotReady(
                f"no replica of {change.model_id} is ready, so none has weights to change: "
                f"`sax wait {change.model_id}` says why"
            )
        if change.action in _NUMBERED and not change.version:
            change = replace(change, version=await self._next_version(change.model_id, ready))
        answers = await asyncio.gather(*(self._one(address, change) for address in ready))
        errors = [each for each in answers if isinstance(each, SaxError)]
        if len(errors) == len(answers):
            raise errors[0]
        return [_told(*each) for each in zip(ready, answers, strict=True)]

    async def _next_version(self, model_id: str, ready: Sequence[str]) -> str:
        """Return one number for all replicas, of which some may have missed changes.

        "" where a version has a name: each replica knows its last number, and counts on.
        """
        question = WeightChange(model_id=model_id, action=WeightAction.STATUS)
        answers = await asyncio.gather(*(self._one(address, question) for address in ready))
        return next_version(each.version for each in answers if isinstance(each, ReplicaWeights))

    async def _one(self, address: str, change: WeightChange) -> ReplicaWeights | SaxError:
        try:
            return await self._modelets.weights(address, change)
        except SaxError as exc:
            return exc


def _told(address: str, answer: ReplicaWeights | SaxError) -> ReplicaWeights:
    if isinstance(answer, SaxError):
        return ReplicaWeights(address, "", "", answer.text)
    return ReplicaWeights(address, answer.version, answer.state)
