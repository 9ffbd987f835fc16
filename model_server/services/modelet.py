"""The Modelet service, through which an admin server (or Saxml's tools) manages this server.

The Control service has the calls of an admin server beyond Saxml's Modelet.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model_server.engine.worker import Worker
from model_server.loading.saving import ExportedMethod, Saver
from model_server.services.fencing import Fencing
from model_server.serving.admission import Admission, check_admin, check_enforceable
from model_server.serving.method_stats import MethodSnapshot
from model_server.serving.servable import Servable
from model_server.serving.servables import Servables
from sax.auth.acl import caller
from sax.auth.security import OPEN_TO_ALL, Security
from sax.errors import (
    CheckpointUnreachable,
    InvalidName,
    InvalidRequest,
    StaleRevision,
    Unavailable,
    UnsupportedParameter,
)
from sax.flags.last_lines import last_lines
from sax.format import quoted, shortened
from sax.names import ModelId, check_checkpoint, check_model_path
from sax.proto import control_pb2, control_pb2_grpc, modelet_pb2, modelet_pb2_grpc
from sax.types import ModelSpec, ServerStatus
from sax.wire.models import decode_load
from sax.wire.records import encode_log
from sax.wire.servers import encode_status
from sax.wire.weights import decode_weights, encode_replica

Request = modelet_pb2.ExportRequest
_DEFAULT = "serving_default"  # signature of the only method
_SIGNATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FORMATS = (Request.SERIALIZED_MODEL_FORMAT_UNKNOWN, Request.JAX_EXPORT)
# Raises InvalidRequest if no load of the model path with these overrides can succeed.
CheckOverrides = Callable[[str, Mapping[str, str]], None]
# Returns a checkpoint with the commit that its revision means now; a path unchanged. Blocks while
# a hub is asked. Raises CheckpointError if no load here can fetch it.
PinCheckpoint = Callable[[str], str]
_PIN_S = 6.0  # the admin server, and whoever publishes, wait a little longer


def exported_methods(request: Any) -> tuple[ExportedMethod, ...]:
    """Return the methods with their signatures. Raises InvalidRequest, UnsupportedParameter."""
    _check_switches(request)
    names, signatures = list(request.method_names), list(request.signatures)
    if not names:
        raise InvalidRequest("name the methods to export, e.g. lm.score", param="method_names")
    if not signatures and len(names) == 1:
        signatures = [_DEFAULT]
    if len(signatures) != len(names) or len(set(signatures)) != len(names):
        raise InvalidRequest(
            f"{len(names)} methods need as many different signatures, not {len(signatures)}",
            param="signatures",
        )
    for signature in signatures:
        if not _SIGNATURE.fullmatch(signature):
            raise InvalidRequest(
                f"signature {quoted(signature)} becomes a file's name: give up to 64 letters, "
                "digits, dots and dashes",
                param="signatures",
            )
    return tuple(map(ExportedMethod, names, signatures))


def _check_switches(request: Any) -> None:
    if request.serialized_model_format not in _FORMATS:
        raise UnsupportedParameter(
            "no TensorFlow SavedModel is written: leave serialized_model_format out, or give "
            "JAX_EXPORT (100), for programs of jax.export with the weights beside them",
            param="serialized_model_format",
        )
    if request.rng_seed_mode != Request.RNG_SEED_MODE_UNSPECIFIED:
        raise UnsupportedParameter(
            "an exported program draws no random numbers, so there is no seed: leave "
            "rng_seed_mode out",
            param="rng_seed_mode",
        )
    if request.enable_gpu_multi_device_execution:
        raise UnsupportedParameter(
            "an exported program runs on one device: leave enable_gpu_multi_device_execution out",
            param="enable_gpu_multi_device_execution",
        )


Status = modelet_pb2.GetStatusResponse
_KEEPS = (
    "this server keeps the models of its --model_keys and takes no others "
    "(--keep_statically_loaded_models)"
)
_VERSION = re.compile("([0-9a-f]{32})?")


class Modelet(modelet_pb2_grpc.ModeletServicer):
    """Loads, unloads and reports the models of one server."""

    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        *,
        cell: str,
        incarnation: str,
        memory: int,
        fencing: Fencing | None = None,
        security: Security = OPEN_TO_ALL,
        keeps_own: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """keeps_own: the server holds what its flags name, and nothing else."""
        self._servables = servables
        self._admission = admission
        self._cell = cell
        self._incarnation = incarnation
        self._memory = memory
        self._fencing = fencing or Fencing()
        self._security = security
        self._keeps_own = keeps_own
        self._saver = saver or Saver(())
        self._writing = asyncio.Lock()  # one at a time: it reads and writes whole models

    async def Load(self, request: Any, context: Any) -> modelet_pb2.LoadResponse:
        """Return once the model is LOADED; GetStatus shows progress meanwhile.

        An admin server of ours, which sends its term, may ask for what is there already. Others are
        refused with InvalidRequest, as by Saxml.
        """
        self._check_admin("load models")
        self._fencing.check(request.term)
        spec = decode_load(request)
        self._check_spec(spec)
        self._check_kept(spec)
        if not request.term and self._servables.has(spec.model_id):
            raise InvalidRequest(
                f"{spec.model_id} is loaded here already, or about to be: call Unload first, or "
                "UpdateLoaded for another checkpoint",
                param="model_key",
            )
        await self._servables.load(spec)
        return modelet_pb2.LoadResponse()

    async def UpdateLoaded(self, request: Any, context: Any) -> modelet_pb2.UpdateLoadedResponse:
        """Apply new ACLs without a reload; load only if another checkpoint is given."""
        self._check_admin("change loaded models")
        self._fencing.check(request.term)
        loaded = self._servables.spec(request.model_key)
        spec = _updated(loaded, request)
        self._check_spec(spec)
        if spec.checkpoint == loaded.checkpoint:
            self._servables.set_acls(loaded.model_id, spec.acls)
        else:
            self._check_kept(spec)
            await self._servables.load(spec)
        return modelet_pb2.UpdateLoadedResponse()

    async def Unload(self, request: Any, context: Any) -> modelet_pb2.UnloadResponse:
        """Return once the memory is free; running requests get a bounded time to end.

        Raises InvalidRequest to callers without a term (see Load) if the model is not here.
        """
        self._check_admin("unload models")
        self._fencing.check(request.term)
        ModelId.parse(request.model_key)
        if self._keeps_own:
            raise Unavailable(f"{shortened(request.model_key)} stays loaded here: {_KEEPS}")
        if not request.term and not self._servables.has(request.model_key):
            raise InvalidRequest(
                f"{shortened(request.model_key)} is not loaded here: there is nothing to unload",
                param="model_key",
            )
        await self._servables.unload(request.model_key)
        return modelet_pb2.UnloadResponse()

    async def GetStatus(self, request: Any, context: Any) -> Status:
        """Answers everyone; a term only counts from callers that may load models here."""
        if not self._security.authenticates or self._security.admins.allows(caller()):
            self._fencing.check(request.term)
        infos = self._servables.infos()
        if not request.include_failure_reasons:
            infos = tuple(replace(info, reason="") for info in infos)
        reply = encode_status(
            ServerStatus(
                infos,
                self._incarnation,
                self._memory,
                self._servables.memory_used,
                dormant=self._servables.dormant,
                draining=self._admission.draining,
            )
        )
        now = time.monotonic()
        early = self._admission.rejections.rate(now)
        reply.server_status.stats.early_rejection_errors_per_second = early
        if request.include_method_stats:
            loaded = {servable.model_id: servable for servable in self._servables.loaded()}
            for model in reply.models:
                if servable := loaded.get(model.model_key):
                    model.method_stats.extend(_method_stats(servable, now))
        return reply

    async def Export(self, request: Any, context: Any) -> modelet_pb2.ExportResponse:
        """Return once programs of the model and its weights are written."""
        self._check_admin("export models")
        methods = exported_methods(request)
        spec = self._loaded_spec(request.model_key)
        async with self._writing:
            await asyncio.to_thread(self._saver.export, spec, request.export_path, methods)
        return modelet_pb2.ExportResponse()

    async def Save(self, request: Any, context: Any) -> modelet_pb2.SaveResponse:
        """Return once the model's checkpoint is written in our own format."""
        self._check_admin("save models")
        spec = self._loaded_spec(request.model_key)
        async with self._writing:
            await asyncio.to_thread(self._saver.save, spec, request.checkpoint_path)
        return modelet_pb2.SaveResponse()

    async def WakeUp(self, request: Any, context: Any) -> modelet_pb2.WakeUpResponse:
        """Does nothing: islands that are lost come back by themselves, nothing else sleeps."""
        return modelet_pb2.WakeUpResponse()

    def _loaded_spec(self, model_key: str) -> ModelSpec:
        """Return the spec of a model that is in memory. Raises NotLoaded."""
        self._servables.get(model_key)
        return self._servables.spec(model_key)

    def _check_admin(self, doing: str) -> None:
        if self._security.authenticates:
            check_admin(caller(), self._security.admins, doing)

    def _check_kept(self, spec: ModelSpec) -> None:
        """Raise Unavailable for another model than those of the flags, if they are kept."""
        if self._keeps_own and not self._servables.holds_own(spec):
            raise Unavailable(f"{spec.model_id} cannot be loaded here: {_KEEPS}")

    def _check_spec(self, spec: ModelSpec) -> None:
        check_spec(spec, self._cell)
        check_enforceable(spec.acls, enforced=self._security.authenticates)


def _updated(loaded: ModelSpec, request: Any) -> ModelSpec:
    """Apply an UpdateLoaded request to a spec. Raises StaleRevision."""
    acls = dict(request.acls.items)
    if request.checkpoint_path in ("", loaded.checkpoint):
        # ACLs apply to any version: the loaded one stays as it is.
        return replace(loaded, acls=acls)
    if request.uuid:
        # A version has overrides too, which only Load carries; only Saxml's admin loads this way.
        raise StaleRevision(
            f"{loaded.model_id} is loaded here from {loaded.checkpoint} and not from "
            f"{request.checkpoint_path}: send Load, or leave out checkpoint_path to set acls only",
            param="checkpoint_path",
        )
    # This is no longer the version that the admin published.
    return replace(loaded, checkpoint=request.checkpoint_path, acls=acls, version="")


def check_spec(spec: ModelSpec, cell: str) -> None:
    """Check names, checkpoint and version. Raises InvalidName or InvalidRequest."""
    model_id = ModelId.parse(spec.model_id)
    if cell and model_id.cell != cell:
        raise InvalidName(
            f"{model_id} belongs to cell {model_id.cell}; this server serves cell {cell} "
            "(--sax_cell)",
            param="model",
        )
    check_model_path(spec.model_path)
    check_checkpoint(spec.checkpoint)
    if not _VERSION.fullmatch(spec.version):
        raise InvalidRequest("uuid has a wrong length: send 16 bytes or none", param="uuid")


def _method_stats(servable: Servable, now: float) -> list[Status.MethodStats]:
    return [
        _encode_stats(name, stats.snapshot(now), list(servable.recent_batch_sizes))
        for name, stats in servable.methods.items()
    ]


def _encode_stats(name: str, stats: MethodSnapshot, batches: list[int]) -> Status.MethodStats:
    """Latencies are in seconds, although the wire calls them "latency per second"."""
    return Status.MethodStats(
        method=name,
        pending_reqs=stats.pending,
        errors_per_second=stats.errors_per_second,
        successes_per_second=stats.successes_per_second,
        mean_latency_on_success_per_second=stats.mean_s,
        p50_latency_on_success_per_second=stats.p50_s,
        p95_latency_on_success_per_second=stats.p95_s,
        p99_latency_on_success_per_second=stats.p99_s,
        recent_batch_sizes=batches,
    )


def takes_every_override(path: str, overrides: Mapping[str, str]) -> None:
    """Accept all: for servers that can judge overrides only by loading."""


def takes_every_checkpoint(checkpoint: str) -> str:
    """Accept all: for servers that fetch nothing."""
    return checkpoint


class ControlService(control_pb2_grpc.ControlServicer):
    """For callers that may load models here."""

    def __init__(
        self,
        fencing: Fencing,
        check_overrides: CheckOverrides,
        security: Security = OPEN_TO_ALL,
        pin_checkpoint: PinCheckpoint = takes_every_checkpoint,
        *,
        pin_s: float = _PIN_S,
        servables: Servables | None = None,
    ) -> None:
        self._servables = servables
        self._fencing = fencing
        self._check_overrides = check_overrides
        self._pin_checkpoint = pin_checkpoint
        self._pin_s = pin_s
        self._security = security

    async def Dispute(self, request: Any, context: Any) -> control_pb2.DisputeResponse:
        self._check_admin("dispute a term")
        self._fencing.dispute(request.term, request.disputed_term)
        return control_pb2.DisputeResponse()

    async def Check(self, request: Any, context: Any) -> control_pb2.CheckResponse:
        """Checks what needs no weights; loads nothing."""
        self._check_admin("check models")
        self._check_overrides(request.model_path, dict(request.overrides))
        pinned = ""
        if request.checkpoint:
            pinned = await self._pinned(request.checkpoint)
        return control_pb2.CheckResponse(checkpoint=pinned)

    async def Weights(self, request: Any, context: Any) -> control_pb2.ReplicaWeights:
        """Change the weights of a loaded language model in place, or pause it."""
        self._check_admin("change weights")
        self._fencing.check(request.term)
        change = decode_weights(request)
        if self._servables is None:
            raise Unavailable("this server has no models")
        return encode_replica(await self._servables.change_weights(change))

    async def Log(self, request: Any, context: Any) -> control_pb2.LogResponse:
        """Return the last lines that this process logged; other hosts of its gang keep theirs."""
        self._check_admin("read the log")
        return encode_log(last_lines())

    async def _pinned(self, checkpoint: str) -> str:
        """Ask within a limit: a name server may take very long. Raises CheckpointError."""
        asked = Worker.once(f"pin {checkpoint}", lambda: self._pin_checkpoint(checkpoint))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), self._pin_s)
        except TimeoutError:
            raise CheckpointUnreachable(
                f"{checkpoint}: the hub did not answer within {self._pin_s:g} s: check the network "
                "of the model server, set HF_ENDPOINT to a mirror, or HF_HUB_OFFLINE=1 to use what "
                "is in the cache",
                param="checkpoint",
            ) from None

    def _check_admin(self, doing: str) -> None:
        if self._security.authenticates:
            check_admin(caller(), self._security.admins, doing)
