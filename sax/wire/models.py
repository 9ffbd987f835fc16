"""Codec for published models, load requests, and the status and progress of servables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sax.proto import admin_pb2, common_pb2, modelet_pb2
from sax.types import (
    Autoscaling,
    Canary,
    CanaryShare,
    ModelSpec,
    Placement,
    Progress,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
)

# Cast: at run time a protobuf enum is a plain int.
_NUMBERS = {
    status: cast(common_pb2.ModelStatus, common_pb2.ModelStatus.Value(status.name))
    for status in ServableStatus
}
_STATUSES: dict[int, ServableStatus] = {number: status for status, number in _NUMBERS.items()}


def encode_state(status: ServableStatus) -> common_pb2.ModelStatus:
    return _NUMBERS[status]


def decode_state(number: int) -> ServableStatus:
    return _STATUSES.get(number, ServableStatus.NONE)


def encode_progress(progress: Progress | None) -> common_pb2.Progress | None:
    if progress is None:
        return None
    return common_pb2.Progress(
        phase=progress.phase, done=progress.done, total=progress.total, unit=progress.unit
    )


def decode_progress(msg: common_pb2.Progress) -> Progress:
    return Progress(phase=msg.phase, done=msg.done, total=msg.total, unit=msg.unit)


def encode_spec(spec: ModelSpec) -> admin_pb2.Model:
    """Encode as Saxml's Model; the version is sent as its uuid."""
    return admin_pb2.Model(
        model_id=spec.model_id,
        model_path=spec.model_path,
        checkpoint_path=spec.checkpoint,
        requested_num_replicas=spec.replicas,
        acls=_encode_acls(spec.acls),
        admin_acl=spec.admin_acl,
        overrides=spec.overrides,
        uuid=bytes.fromhex(spec.version),
        revision=spec.revision,
        autoscaling=_encode_autoscaling(spec.autoscaling),
        placement=admin_pb2.Placement(
            tags=spec.placement.tags,
            devices=spec.placement.devices,
            memory_bytes=spec.placement.memory,
        ),
        canary=_encode_canary(spec.canary),
    )


def decode_spec(msg: admin_pb2.Model) -> ModelSpec:
    """Decode Saxml's Model, except the method names, which `decode_published` reads."""
    return ModelSpec(
        model_id=msg.model_id,
        model_path=msg.model_path,
        checkpoint=msg.checkpoint_path,
        replicas=msg.requested_num_replicas,
        overrides=dict(msg.overrides),
        acls=dict(msg.acls.items),
        admin_acl=msg.admin_acl,
        version=msg.uuid.hex(),
        revision=msg.revision,
        autoscaling=_decode_autoscaling(msg),
        placement=Placement(
            tags=tuple(msg.placement.tags),
            devices=msg.placement.devices,
            memory=msg.placement.memory_bytes,
        ),
        canary=_decode_canary(msg.canary) if msg.HasField("canary") else None,
    )


def encode_published(model: PublishedModel) -> admin_pb2.PublishedModel:
    """Encode for listing: Saxml's clients see the addresses, ours each replica and its reason."""
    spec = encode_spec(model.spec)
    spec.method_names.extend(model.methods)
    return admin_pb2.PublishedModel(
        model=spec,
        modelet_addresses=[replica.address for replica in model.replicas if replica.address],
        ready_replicas=model.ready_replicas,
        replicas=[_encode_replica(replica) for replica in model.replicas],
        wanted_replicas=model.wanted,
        scaling_reason=model.scaling_reason,
        warnings=model.warnings,
        published_at_s=model.published_at_s,
    )


def decode_models(msg: admin_pb2.ListResponse) -> list[PublishedModel]:
    """Decode the models of a listing, with what its servers tell of them."""
    contexts: dict[str, int] = {}
    for servable in (each for server in msg.servers for each in server.servables):
        context = servable.memory_parts.context
        if context and servable.status == common_pb2.LOADED:
            known = contexts.setdefault(servable.model_id, context)
            contexts[servable.model_id] = min(known, context)
    return [
        decode_published(model, contexts.get(model.model.model_id, 0))
        for model in msg.published_models
    ]


def decode_published(msg: admin_pb2.PublishedModel, max_context: int = 0) -> PublishedModel:
    """Decode a model; a Saxml admin reports only its replicas' addresses."""
    replicas = tuple(map(_decode_replica, msg.replicas)) or tuple(
        ReplicaStatus(address, ServableStatus.NONE) for address in msg.modelet_addresses
    )
    return PublishedModel(
        spec=decode_spec(msg.model),
        replicas=replicas,
        methods=tuple(msg.model.method_names),
        wanted=msg.wanted_replicas,
        scaling_reason=msg.scaling_reason,
        max_context=max_context,
        warnings=tuple(msg.warnings),
        published_at_s=msg.published_at_s,
    )


def encode_load(spec: ModelSpec) -> modelet_pb2.LoadRequest:
    """Encode the part of a spec that one server needs: no replicas, no operators' ACL."""
    return modelet_pb2.LoadRequest(
        model_key=spec.model_id,
        model_path=spec.model_path,
        checkpoint_path=spec.checkpoint,
        acls=_encode_acls(spec.acls),
        overrides=spec.overrides,
        uuid=bytes.fromhex(spec.version),
    )


def decode_load(msg: modelet_pb2.LoadRequest) -> ModelSpec:
    """Decode a load request; `replicas` is 0, as a server does not know it."""
    return ModelSpec(
        model_id=msg.model_key,
        model_path=msg.model_path,
        checkpoint=msg.checkpoint_path,
        replicas=0,
        overrides=dict(msg.overrides),
        acls=dict(msg.acls.items),
        version=msg.uuid.hex(),
    )


def encode_share(share: CanaryShare | None) -> admin_pb2.CanaryShare | None:
    if share is None:
        return None
    return admin_pb2.CanaryShare(
        uuid=bytes.fromhex(share.version),
        percent=share.percent,
        addresses=sorted(share.addresses),
    )


def decode_share(msg: admin_pb2.WatchLocResponse) -> CanaryShare | None:
    if not msg.HasField("canary"):
        return None
    share = msg.canary
    return CanaryShare(share.uuid.hex(), share.percent, frozenset(share.addresses))


def _encode_canary(canary: Canary | None) -> admin_pb2.Canary | None:
    if canary is None:
        return None
    return admin_pb2.Canary(
        uuid=bytes.fromhex(canary.version),
        checkpoint_path=canary.checkpoint,
        overrides=canary.overrides,
        percent=canary.percent,
    )


def _decode_canary(msg: admin_pb2.Canary) -> Canary:
    return Canary(
        version=msg.uuid.hex(),
        checkpoint=msg.checkpoint_path,
        overrides=dict(msg.overrides),
        percent=msg.percent,
    )


def _encode_autoscaling(autoscaling: Autoscaling | None) -> admin_pb2.Autoscaling | None:
    if autoscaling is None:
        return None
    return admin_pb2.Autoscaling(
        min_replicas=autoscaling.min_replicas,
        max_replicas=autoscaling.max_replicas,
        target_queue=autoscaling.target_queue,
    )


def _decode_autoscaling(msg: admin_pb2.Model) -> Autoscaling | None:
    if not msg.HasField("autoscaling"):
        return None
    return Autoscaling(
        min_replicas=msg.autoscaling.min_replicas,
        max_replicas=msg.autoscaling.max_replicas,
        target_queue=msg.autoscaling.target_queue,
    )


def _encode_acls(acls: Mapping[str, str]) -> common_pb2.AccessControlLists:
    return common_pb2.AccessControlLists(items=acls)


def _encode_replica(replica: ReplicaStatus) -> admin_pb2.Replica:
    return admin_pb2.Replica(
        address=replica.address,
        status=encode_state(replica.status),
        reason=replica.reason,
        progress=encode_progress(replica.progress),
        note=replica.note,
        canary=replica.canary,
    )


def _decode_replica(msg: admin_pb2.Replica) -> ReplicaStatus:
    return ReplicaStatus(
        address=msg.address,
        status=decode_state(msg.status),
        reason=msg.reason,
        progress=decode_progress(msg.progress) if msg.HasField("progress") else None,
        note=msg.note,
        canary=msg.canary,
    )
