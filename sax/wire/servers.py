"""Codec for model servers: join, GetStatus, and their listing; Saxml's numbers of chips.

Their texts are derived from the enum's names, so a new chip needs only a line in the proto.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import cast

from sax.activity import IDLE, Activity
from sax.memory_parts import MemoryParts
from sax.need import Need
from sax.proto import admin_pb2, common_pb2, modelet_pb2
from sax.proto.admin_pb2 import ModelServer
from sax.types import (
    CellStats,
    JoinedServer,
    ServableInfo,
    ServerInfo,
    ServerStatus,
    ServerTypeStat,
    Traffic,
)
from sax.wire.models import decode_progress, decode_state, encode_progress, encode_state

_NAMES = tuple(each.name for each in fields(Activity))

_ACTIVE = modelet_pb2.GetStatusResponse.ServerStatus.ACTIVE
_DORMANT = modelet_pb2.GetStatusResponse.ServerStatus.DORMANT

UNKNOWN = "unknown"  # chip or topology
# Casts: at run time a protobuf enum is a plain int.
_CHIPS = {
    name.removeprefix("CHIP_TYPE_").removeprefix("GPU_").replace("_", "").lower(): cast(
        ModelServer.ChipType, number
    )
    for name, number in ModelServer.ChipType.items()
}
_TOPOLOGIES = {
    name.removeprefix("CHIP_TOPOLOGY_").lower(): cast(ModelServer.ChipTopology, number)
    for name, number in ModelServer.ChipTopology.items()
}
_CHIP_TEXTS: dict[int, str] = {number: text for text, number in _CHIPS.items()}
_TOPOLOGY_TEXTS: dict[int, str] = {number: text for text, number in _TOPOLOGIES.items()}


def encode_join(info: ServerInfo, *, leaving: bool = False) -> admin_pb2.JoinRequest:
    return admin_pb2.JoinRequest(
        address=info.address,
        debug_address=info.debug_address,
        data_address=info.data_address,
        model_server=_encode_model_server(info),
        incarnation_id=info.incarnation,
        memory_total_bytes=info.memory_total,
        devices=info.devices,
        leaving=leaving,
    )


def decode_join(msg: admin_pb2.JoinRequest) -> ServerInfo:
    """Decode; a chip or topology without a wire number comes back as "unknown"."""
    return _decode_info(msg)


def encode_status(status: ServerStatus) -> modelet_pb2.GetStatusResponse:
    """Encode the answer to GetStatus, without traffic: the server adds that per method."""
    return modelet_pb2.GetStatusResponse(
        models=[_encode_model(servable) for servable in status.servables],
        server_status=modelet_pb2.GetStatusResponse.ServerStatus(
            state=_DORMANT if status.dormant else _ACTIVE,
            incarnation_id=status.incarnation,
            memory_total_bytes=status.memory_total,
            memory_used_bytes=status.memory_used,
            draining=status.draining,
        ),
    )


def decode_status(msg: modelet_pb2.GetStatusResponse) -> ServerStatus:
    return ServerStatus(
        servables=tuple(map(_decode_model, msg.models)),
        incarnation=msg.server_status.incarnation_id,
        memory_total=msg.server_status.memory_total_bytes,
        memory_used=msg.server_status.memory_used_bytes,
        dormant=msg.server_status.state == _DORMANT,
        traffic=_decode_traffic(msg),
        draining=msg.server_status.draining,
    )


def encode_joined(server: JoinedServer) -> admin_pb2.JoinedModelServer:
    """Encode for listing: Saxml's maps and the full servables; last_seen_s is rounded to 1 ms."""
    return admin_pb2.JoinedModelServer(
        model_server=_encode_model_server(server.info),
        address=server.info.address,
        debug_address=server.info.debug_address,
        data_address=server.info.data_address,
        last_join_ms=round(server.last_seen_s * 1000),
        loaded_models={s.model_id: encode_state(s.status) for s in server.servables},
        failure_reasons={s.model_id: s.reason for s in server.servables if s.reason},
        incarnation_id=server.info.incarnation,
        memory_total_bytes=server.info.memory_total,
        devices=server.info.devices,
        memory_used_bytes=server.memory_used,
        servables=[_encode_servable(servable) for servable in server.servables],
        is_dormant=server.dormant,
        pending_requests=server.traffic.pending,
        errors_per_second=server.traffic.errors_per_second,
        successes_per_second=server.traffic.successes_per_second,
        mean_latency_in_seconds=server.traffic.mean_latency_s,
    )


def decode_joined(msg: admin_pb2.JoinedModelServer) -> JoinedServer:
    """Decode a listed server; falls back to the two maps for a Saxml admin."""
    servables = tuple(map(_decode_servable, msg.servables)) or tuple(
        ServableInfo(
            model_id=model_id,
            status=decode_state(status),
            reason=msg.failure_reasons.get(model_id, ""),
        )
        for model_id, status in sorted(msg.loaded_models.items())
    )
    return JoinedServer(
        info=_decode_info(msg),
        last_seen_s=msg.last_join_ms / 1000,
        servables=servables,
        memory_used=msg.memory_used_bytes,
        dormant=msg.is_dormant,
        traffic=Traffic(
            pending=msg.pending_requests,
            errors_per_second=msg.errors_per_second,
            successes_per_second=msg.successes_per_second,
            mean_latency_s=msg.mean_latency_in_seconds,
        ),
    )


def encode_stats(stats: CellStats) -> admin_pb2.StatsResponse:
    return admin_pb2.StatsResponse(
        model_server_type_stats=[
            admin_pb2.ModelServerTypeStat(
                chip_type=encode_chip(stat.chip_type),
                chip_topology=encode_topology(stat.chip_topology),
                num_replicas=stat.replicas,
            )
            for stat in stats.types
        ],
        num_servers_by_servable_model_path=stats.servers_by_model_path,
    )


def decode_stats(msg: admin_pb2.StatsResponse) -> CellStats:
    return CellStats(
        types=tuple(
            ServerTypeStat(
                decode_chip(stat.chip_type), decode_topology(stat.chip_topology), stat.num_replicas
            )
            for stat in msg.model_server_type_stats
        ),
        servers_by_model_path=dict(msg.num_servers_by_servable_model_path),
    )


def _decode_traffic(msg: modelet_pb2.GetStatusResponse) -> Traffic:
    """Sum over all methods; zero if method stats were not requested."""
    stats = [one for model in msg.models for one in model.method_stats]
    successes = sum(one.successes_per_second for one in stats)
    busy = sum(one.successes_per_second * one.mean_latency_on_success_per_second for one in stats)
    return Traffic(
        pending=sum(one.pending_reqs for one in stats),
        errors_per_second=sum(one.errors_per_second for one in stats),
        successes_per_second=successes,
        mean_latency_s=busy / successes if successes > 0 else 0.0,
    )


def _encode_model_server(info: ServerInfo) -> admin_pb2.ModelServer:
    return admin_pb2.ModelServer(
        chip_type=encode_chip(info.chip_type),
        chip_topology=encode_topology(info.chip_topology),
        servable_model_paths=info.model_paths,
        tags=info.tags,
    )


def _decode_info(msg: admin_pb2.JoinRequest | admin_pb2.JoinedModelServer) -> ServerInfo:
    return ServerInfo(
        address=msg.address,
        data_address=msg.data_address,
        debug_address=msg.debug_address,
        chip_type=decode_chip(msg.model_server.chip_type),
        chip_topology=decode_topology(msg.model_server.chip_topology),
        model_paths=tuple(msg.model_server.servable_model_paths),
        tags=tuple(msg.model_server.tags),
        incarnation=msg.incarnation_id,
        memory_total=msg.memory_total_bytes,
        devices=msg.devices,
    )


def _encode_model(servable: ServableInfo) -> modelet_pb2.GetStatusResponse.ModelWithStatus:
    return modelet_pb2.GetStatusResponse.ModelWithStatus(
        model_key=servable.model_id,
        model_status=encode_state(servable.status),
        failure_reason=servable.reason,
        progress=encode_progress(servable.progress),
        uuid=bytes.fromhex(servable.version),
        memory_bytes=servable.memory,
        methods=servable.methods,
        queued_requests=servable.queued,
        running_requests=servable.running,
        arrived_requests=servable.arrived,
        acls=common_pb2.AccessControlLists(items=servable.acls),
        need=_encode_need(servable.need),
        note=servable.note,
        memory_parts=_encode_parts(servable.parts),
        kernels=servable.kernels,
        activity=encode_activity(servable.activity),
        own=servable.own,
    )


def _decode_model(msg: modelet_pb2.GetStatusResponse.ModelWithStatus) -> ServableInfo:
    return ServableInfo(
        model_id=msg.model_key,
        status=decode_state(msg.model_status),
        version=msg.uuid.hex(),
        reason=msg.failure_reason,
        progress=decode_progress(msg.progress) if msg.HasField("progress") else None,
        memory=msg.memory_bytes,
        methods=tuple(msg.methods),
        queued=msg.queued_requests,
        running=msg.running_requests,
        arrived=msg.arrived_requests,
        acls=dict(msg.acls.items),
        need=_decode_need(msg.need) if msg.HasField("need") else None,
        note=msg.note,
        parts=_decode_parts(msg.memory_parts),
        kernels=msg.kernels,
        activity=decode_activity(msg.activity),
        own=msg.own,
    )


def _encode_need(need: Need | None) -> modelet_pb2.Need | None:
    if need is None:
        return None
    return modelet_pb2.Need(
        devices=need.devices, memory_bytes=need.memory, weight_bytes=need.weights
    )


def _decode_need(msg: modelet_pb2.Need) -> Need:
    # Negative numbers make no sense, but a server may send anything.
    return Need(
        devices=max(0, msg.devices),
        memory=max(0, msg.memory_bytes),
        weights=max(0, msg.weight_bytes),
    )


def _encode_servable(servable: ServableInfo) -> admin_pb2.Servable:
    return admin_pb2.Servable(
        model_id=servable.model_id,
        status=encode_state(servable.status),
        uuid=bytes.fromhex(servable.version),
        reason=servable.reason,
        progress=encode_progress(servable.progress),
        memory_bytes=servable.memory,
        methods=servable.methods,
        queued_requests=servable.queued,
        running_requests=servable.running,
        arrived_requests=servable.arrived,
        note=servable.note,
        memory_parts=_encode_parts(servable.parts),
        kernels=servable.kernels,
        activity=encode_activity(servable.activity),
    )


def _decode_servable(msg: admin_pb2.Servable) -> ServableInfo:
    return ServableInfo(
        model_id=msg.model_id,
        status=decode_state(msg.status),
        version=msg.uuid.hex(),
        reason=msg.reason,
        progress=decode_progress(msg.progress) if msg.HasField("progress") else None,
        memory=msg.memory_bytes,
        methods=tuple(msg.methods),
        queued=msg.queued_requests,
        running=msg.running_requests,
        arrived=msg.arrived_requests,
        note=msg.note,
        parts=_decode_parts(msg.memory_parts),
        kernels=msg.kernels,
        activity=decode_activity(msg.activity),
    )


def _encode_parts(parts: MemoryParts) -> common_pb2.MemoryParts | None:
    if parts == MemoryParts():
        return None
    return common_pb2.MemoryParts(
        weight_bytes=parts.weights,
        kv_bytes=parts.kv,
        state_bytes=parts.state,
        workspace_bytes=parts.workspace,
        least_bytes=parts.least,
        slots=parts.slots,
        context=parts.context,
        tokens=parts.tokens,
    )


def _decode_parts(msg: common_pb2.MemoryParts) -> MemoryParts:
    # Negative numbers make no sense, but a server may send anything.
    return MemoryParts(
        weights=max(0, msg.weight_bytes),
        kv=max(0, msg.kv_bytes),
        state=max(0, msg.state_bytes),
        workspace=max(0, msg.workspace_bytes),
        least=max(0, msg.least_bytes),
        slots=max(0, msg.slots),
        context=max(0, msg.context),
        tokens=max(0, msg.tokens),
    )


def encode_activity(activity: Activity) -> common_pb2.Activity | None:
    if activity == IDLE:
        return None
    return common_pb2.Activity(**{name: getattr(activity, name) for name in _NAMES})


def decode_activity(msg: common_pb2.Activity) -> Activity:
    # Negative numbers make no sense, nor do infinite ones, but a server may send anything.
    values = {name: getattr(msg, name) for name in _NAMES}
    good = {name: value for name, value in values.items() if value > 0 and math.isfinite(value)}
    return Activity(**good)


def encode_chip(text: str) -> ModelServer.ChipType:
    """Return the number of "tpuv5e", "h100", "cpu" ...; else CHIP_TYPE_UNKNOWN."""
    return _CHIPS.get(text.lower(), _CHIPS[UNKNOWN])


def decode_chip(number: int) -> str:
    return _CHIP_TEXTS.get(number, UNKNOWN)


def encode_topology(text: str) -> ModelServer.ChipTopology:
    """Return the number of "4x8", "1" ...; else CHIP_TOPOLOGY_UNKNOWN."""
    shape = text.lower().removesuffix("_untwisted").removesuffix("_twisted")
    return _TOPOLOGIES.get(shape, _TOPOLOGIES[UNKNOWN])


def decode_topology(number: int) -> str:
    return _TOPOLOGY_TEXTS.get(number, UNKNOWN)
