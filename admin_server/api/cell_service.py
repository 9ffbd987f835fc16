"""The Cell service on gRPC: operator calls beyond Saxml's API. Decode, call the cell, encode."""

from __future__ import annotations

from typing import Any

from admin_server.api.access import EVERYONE_MAY, Access
from admin_server.cell.cell import Cell
from admin_server.leadership import AdminRole
from sax.auth.acl import caller
from sax.errors import InvalidRequest
from sax.flags.last_lines import last_lines
from sax.proto import cell_pb2, cell_pb2_grpc, control_pb2
from sax.wire.records import encode_event, encode_log, encode_version
from sax.wire.weights import decode_weights, encode_replica

SERVICE = "sax.Cell"
_UUID_BYTES = 16
Context = Any  # grpc.aio.ServicerContext is generic in the stubs only


class CellService(cell_pb2_grpc.CellServicer):
    def __init__(self, role: AdminRole, access: Access = EVERYONE_MAY) -> None:
        self._role = role
        self._by_flags = access

    @property
    def _cell(self) -> Cell:
        return self._role.require()

    @property
    def _access(self) -> Access:
        return self._by_flags.granting(self._cell.ledger.state.admin_acl)

    async def Rollback(
        self, request: cell_pb2.RollbackRequest, context: Context
    ) -> cell_pb2.RollbackResponse:
        self._check(request.model_id, "roll back")
        if len(request.uuid) not in (0, _UUID_BYTES):
            raise InvalidRequest(
                f"the version has {len(request.uuid)} bytes: send {_UUID_BYTES} bytes, or none for "
                "the one before the current",
                param="version",
            )
        version = await self._cell.rollback(request.model_id, request.uuid.hex(), by=caller().name)
        return cell_pb2.RollbackResponse(uuid=bytes.fromhex(version))

    async def Versions(
        self, request: cell_pb2.VersionsRequest, context: Context
    ) -> cell_pb2.VersionsResponse:
        versions = self._cell.versions(request.model_id)
        return cell_pb2.VersionsResponse(versions=map(encode_version, versions))

    async def Events(
        self, request: cell_pb2.EventsRequest, context: Context
    ) -> cell_pb2.EventsResponse:
        events = await self._cell.events(request.model_id, request.before, request.limit)
        return cell_pb2.EventsResponse(events=map(encode_event, events))

    async def Canary(
        self, request: cell_pb2.CanaryRequest, context: Context
    ) -> cell_pb2.CanaryResponse:
        self._check(request.model_id, "update")
        version = await self._cell.canaries.start(
            request.model_id,
            request.checkpoint_path,
            dict(request.overrides),
            request.percent,
            revision=request.revision,
            by=caller().name,
        )
        return cell_pb2.CanaryResponse(uuid=bytes.fromhex(version))

    async def Promote(
        self, request: cell_pb2.PromoteRequest, context: Context
    ) -> cell_pb2.PromoteResponse:
        self._check(request.model_id, "promote the canary of")
        version = await self._cell.canaries.promote(request.model_id, by=caller().name)
        return cell_pb2.PromoteResponse(uuid=bytes.fromhex(version))

    async def Abort(
        self, request: cell_pb2.AbortRequest, context: Context
    ) -> cell_pb2.AbortResponse:
        self._check(request.model_id, "abort the canary of")
        version = await self._cell.canaries.abort(request.model_id, by=caller().name)
        return cell_pb2.AbortResponse(uuid=bytes.fromhex(version))

    async def Weights(
        self, request: control_pb2.WeightsRequest, context: Context
    ) -> cell_pb2.WeightsResponse:
        change = decode_weights(request)
        spec = self._cell.ledger.state.models.get(change.model_id)
        self._access.check_weights(caller(), spec)
        replicas = await self._cell.weights.change(change)
        return cell_pb2.WeightsResponse(replicas=map(encode_replica, replicas))

    def _check(self, model_id: str, doing: str) -> None:
        self._access.check_model(caller(), self._cell.ledger.state.models.get(model_id), doing)

    async def Demand(
        self, request: cell_pb2.DemandRequest, context: Context
    ) -> cell_pb2.DemandResponse:
        prospect = self._cell.demand(request.model_id, request.waiting, request.caller)
        return cell_pb2.DemandResponse(starting=prospect.starting, reason=prospect.reason)

    async def Log(
        self, request: control_pb2.LogRequest, context: Context
    ) -> control_pb2.LogResponse:
        """Return the last lines of this server's log, or of a model server's."""
        self._access.check_cell(caller(), "read the logs")
        here = not request.server
        return encode_log(last_lines() if here else await self._cell.log(request.server))

    async def Rights(
        self, request: cell_pb2.RightsRequest, context: Context
    ) -> cell_pb2.RightsResponse:
        rights = self._access.rights(caller(), self._cell.ledger.state.models.values())
        return cell_pb2.RightsResponse(publish=rights.publish, models=sorted(rights.models))

    async def CellAcl(
        self, request: cell_pb2.CellAclRequest, context: Context
    ) -> cell_pb2.CellAclResponse:
        """Return the principals who may do everything in this cell."""
        access = self._access
        admins = "" if access.admins.empty else str(access.admins)
        return cell_pb2.CellAclResponse(admin_acl=admins, enforced=access.enforced)

    async def SetCellAcl(
        self, request: cell_pb2.SetCellAclRequest, context: Context
    ) -> cell_pb2.SetCellAclResponse:
        """Replace who may, beside those of --admin_acl, who cannot be locked out."""
        self._access.check_cell(caller(), "set the access control list")
        if request.admin_acl:
            self._access.check_asks("admin_acl")
        await self._cell.grant(request.admin_acl, by=caller().name)
        return cell_pb2.SetCellAclResponse()
