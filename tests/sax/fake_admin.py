"""An admin that holds a dict: enough of sax.Admin to publish, list, watch and wait.

`ready(model_id, *addresses)` says which replicas are ready; watchers hear of it. It hears of held
requests as sax.Cell does, unless it is one from before there was such a service.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc.aio

from sax.errors import ModelExists, ModelNotFound, SaxError
from sax.proto import admin_pb2, admin_pb2_grpc, cell_pb2, cell_pb2_grpc
from sax.types import (
    CanaryShare,
    CellStats,
    JoinedServer,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
    ServerTypeStat,
)
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.models import decode_spec, encode_published, encode_share
from sax.wire.rpc import server_options
from sax.wire.servers import encode_joined, encode_stats


class FakeAdmin(admin_pb2_grpc.AdminServicer, cell_pb2_grpc.CellServicer):
    """Tests read and write its state; every watch answers with the full set."""

    def __init__(self, id: str = "first", *, hears_demand: bool = True) -> None:
        self.id = id
        self.hears_demand = hears_demand
        self.demands: list[cell_pb2.DemandRequest] = []
        self.starting: str = ""  # why held requests are worth holding; empty: they are not
        self.refusal: str = ""  # why they are not
        self.models: dict[str, PublishedModel] = {}
        self.shares: dict[str, CanaryShare] = {}  # by model; told at the next announcement
        self.servers: list[JoinedServer] = []
        self.seqno = 0
        self.admin_acl: str = ""
        self.calls: list[str] = []
        self.fail: list[SaxError] = []  # raised by the next calls, first in first out
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self, port: int = 0) -> str:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
        add: Any = admin_pb2_grpc.add_AdminServicer_to_server
        add(self, self._server)
        if self.hears_demand:
            add_cell: Any = cell_pb2_grpc.add_CellServicer_to_server
            add_cell(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()
        return self.address

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def ready(self, model_id: str, *addresses: str) -> None:
        replicas = tuple(ReplicaStatus(each, ServableStatus.LOADED) for each in addresses)
        self.models[model_id] = replace(self.models[model_id], replicas=replicas)
        self.announce()

    def announce(self) -> None:
        self.seqno += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def heard(self, waiting: int) -> None:
        """Return once the client has told that so many wait, and has taken in the answer."""
        if not waiting:
            while not self.demands or self.demands[-1].waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return
        told = len(self.demands)  # two more: it took in the first answer before it told again
        while [each.waiting for each in self.demands[told:]][-2:] != [waiting] * 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _begin(self, method: str) -> None:
        self.calls.append(method)
        if self.fail:
            raise self.fail.pop(0)

    def _find(self, model_id: str) -> PublishedModel:
        if model_id not in self.models:
            raise ModelNotFound(f"{model_id} is not published", param="model")
        return self.models[model_id]

    async def Publish(self, request: admin_pb2.PublishRequest, context: Any) -> Any:
        self._begin("Publish")
        spec = decode_spec(request.model)
        if spec.model_id in self.models:
            raise ModelExists(f"{spec.model_id} is published already")
        self.models[spec.model_id] = PublishedModel(replace(spec, version="ab" * 16))
        return admin_pb2.PublishResponse()

    async def Update(self, request: admin_pb2.UpdateRequest, context: Any) -> Any:
        self._begin("Update")
        spec = decode_spec(request.model)
        self.models[spec.model_id] = replace(self._find(spec.model_id), spec=spec)
        return admin_pb2.UpdateResponse()

    async def Unpublish(self, request: admin_pb2.UnpublishRequest, context: Any) -> Any:
        self._begin("Unpublish")
        self._find(request.model_id)
        del self.models[request.model_id]
        self.announce()
        return admin_pb2.UnpublishResponse()

    async def List(self, request: admin_pb2.ListRequest, context: Any) -> Any:
        self._begin("List")
        one = request.model_id.count("/") == 3
        models = [self._find(request.model_id)] if one else self.models.values()
        return admin_pb2.ListResponse(
            published_models=map(encode_published, models),
            servers=[] if one else map(encode_joined, self.servers),
        )

    async def Stats(self, request: admin_pb2.StatsRequest, context: Any) -> Any:
        self._begin("Stats")
        return encode_stats(
            CellStats((ServerTypeStat("cpu", "1", len(self.servers)),), {"llama": 1})
        )

    async def WatchLoc(self, request: admin_pb2.WatchLocRequest, context: Any) -> Any:
        self._begin("WatchLoc")
        model = self._find(request.model_id)
        while request.admin_server_id == self.id and request.seqno == self.seqno:
            await self._changed.wait()
            model = self._find(request.model_id)
        ready = [r.address for r in model.replicas if r.status is ServableStatus.LOADED]
        result = admin_pb2.WatchResult(next_seqno=self.seqno, has_fullset=True, values=ready)
        share = encode_share(self.shares.get(request.model_id))
        return admin_pb2.WatchLocResponse(admin_server_id=self.id, result=result, canary=share)

    async def Demand(self, request: cell_pb2.DemandRequest, context: Any) -> Any:
        self._begin("Demand")
        self.demands.append(request)
        reason = self.starting or self.refusal
        return cell_pb2.DemandResponse(starting=bool(self.starting), reason=reason)

    async def CellAcl(self, request: cell_pb2.CellAclRequest, context: Any) -> Any:
        self._begin("CellAcl")
        return cell_pb2.CellAclResponse(admin_acl=self.admin_acl)

    async def SetCellAcl(self, request: cell_pb2.SetCellAclRequest, context: Any) -> Any:
        self._begin("SetCellAcl")
        self.admin_acl = request.admin_acl
        return cell_pb2.SetCellAclResponse()

    async def WaitForReady(self, request: admin_pb2.WaitForReadyRequest, context: Any) -> Any:
        self._begin("WaitForReady")
        while self._find(request.model_id).ready_replicas < request.num_replicas:
            await self._changed.wait()
        return admin_pb2.WaitForReadyResponse()
