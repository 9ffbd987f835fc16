"""A model server without models: it loads at once, or fails, or waits, as it is told.

Speaks the real Modelet service on a real port, and joins the admin as real ones do.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio

from sax.auth.authentication import Authentication
from sax.auth.credentials import call_metadata
from sax.auth.token_file import TokenFile
from sax.errors import (
    CheckpointError,
    InvalidRequest,
    MemoryPlanError,
    NotLeading,
    SaxError,
    UnsupportedParameter,
)
from sax.need import Need
from sax.proto import admin_pb2, control_pb2, control_pb2_grpc, modelet_pb2, modelet_pb2_grpc
from sax.types import Progress, ServableInfo, ServableStatus, ServerInfo, ServerStatus
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.models import decode_load
from sax.wire.rpc import open_channel, server_options
from sax.wire.servers import encode_join, encode_status


class FakeModelet(modelet_pb2_grpc.ModeletServicer, control_pb2_grpc.ControlServicer):
    """`calls` tells what it was asked, in order: ("load" or "unload", model id)."""

    def __init__(
        self,
        *,
        paths: tuple[str, ...] = ("llama",),
        data_address: str = "",
        tags: tuple[str, ...] = (),
        devices: int = 0,
        tokens: Path | None = None,
    ) -> None:
        """With tokens it asks its callers who they are."""
        self._authentication = Authentication(TokenFile(tokens) if tokens else None)
        self.paths = paths
        self.data_address = data_address
        self.tags = tags
        self.devices = devices
        self.need: Need | None = None  # what every load needs; it has no room on fewer devices
        self.incarnation = uuid.uuid4().hex
        self.models: dict[str, ServableInfo] = {}
        self.calls: list[tuple[str, str]] = []
        self.loaded_overrides: dict[str, str] = {}  # of the last load
        self.failing: str = ""  # the reason why every load fails
        self.refusing: str = ""  # the reason why no access control lists are taken
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.address = "127.0.0.1:0"
        self.stats: list[modelet_pb2.GetStatusResponse.MethodStats] = []  # of every model
        self.polls: list[bool] = []  # of each GetStatus, whether it asked for them
        self.dormant = False
        self.draining = False
        self.away = False  # for who makes it beat
        self.terms: set[int] = set()  # of whoever gave orders or asked
        self.obeys = 0  # a term that nobody else's orders are taken beside; 0: everyone's are
        self.disputes: list[tuple[int, int]] = []  # term of the leader, and the one it disputed
        self.bad_override = ""  # refused by a check and by a load
        self.checks = 0
        self.bad_checkpoint: SaxError | None = None  # the answer to a check or a load of a hub's
        self.pins = "@c0ffee"  # what a check adds to a hub's checkpoint
        self.cannot_check = False  # as one of an older version
        self._server: grpc.aio.Server | None = None

    async def start(self) -> FakeModelet:
        """Serve; after a stop, at the same address as before, as another start of the process."""
        interceptor = ErrorInterceptor(self._authentication)
        self._server = grpc.aio.server(interceptors=[interceptor], options=server_options())
        modelet_pb2_grpc.add_ModeletServicer_to_server(self, self._server)
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def cut_off(self) -> None:
        """Answer nobody, and keep what is loaded, until the next start."""
        assert self._server is not None
        await self._server.stop(None)

    async def stop(self) -> None:
        """Die: nothing that was loaded is left."""
        await self.cut_off()
        self.models = {}
        self.incarnation = uuid.uuid4().hex

    async def join(self, port: int) -> None:
        """Join the admin server on this port of this machine."""
        async with open_channel(f"127.0.0.1:{port}") as channel:
            join = channel.unary_unary(
                "/sax.Admin/Join",
                admin_pb2.JoinRequest.SerializeToString,
                admin_pb2.JoinResponse.FromString,
            )
            await join(encode_join(self.info), metadata=call_metadata())

    @property
    def info(self) -> ServerInfo:
        """What it says of itself."""
        return ServerInfo(
            address=self.address,
            data_address=self.data_address,
            debug_address="127.0.0.1:7",
            model_paths=self.paths,
            tags=self.tags,
            devices=self.devices,
            incarnation=self.incarnation,
            memory_total=2**30,
        )

    def holds(self, model_id: str) -> bool:
        """Is the model loaded?"""
        held = self.models.get(model_id)
        return held is not None and held.status is ServableStatus.LOADED

    async def Load(self, request: Any, context: Any) -> modelet_pb2.LoadResponse:
        self.terms.add(request.term)
        spec = decode_load(request)
        self.loaded_overrides = dict(spec.overrides)
        self.calls.append(("load", spec.model_id))
        if self.need is not None and self.devices < self.need.devices:
            raise MemoryPlanError(f"{self.devices} devices are too few", need=self.need)
        self.models[spec.model_id] = ServableInfo(
            model_id=spec.model_id,
            status=ServableStatus.LOADING,
            version=spec.version,
            progress=Progress("reading weights", 1, 2),
            acls=spec.acls,
        )
        await self.may_load.wait()
        loaded = replace(
            self.models[spec.model_id],
            status=ServableStatus.LOADED,
            progress=None,
            methods=("lm.generate", "lm.score"),
            kernels="avx2, 2 threads",
        )
        if self.failing:
            loaded = replace(loaded, status=ServableStatus.FAILED, reason=self.failing)
        self.models[spec.model_id] = replace(loaded, memory=1000)
        if self.failing:
            raise CheckpointError(self.failing)
        try:
            self._check(self.loaded_overrides)
            if self.bad_checkpoint is not None and "://" in spec.checkpoint:
                raise self.bad_checkpoint
        except SaxError as exc:
            failed = replace(loaded, status=ServableStatus.FAILED, reason=exc.text)
            self.models[spec.model_id] = failed
            raise
        return modelet_pb2.LoadResponse()

    async def UpdateLoaded(self, request: Any, context: Any) -> modelet_pb2.UpdateLoadedResponse:
        self.terms.add(request.term)
        self.calls.append(("acls", request.model_key))
        if self.refusing:
            raise InvalidRequest(self.refusing)
        held = self.models[request.model_key]
        assert not request.checkpoint_path  # another one would be loaded
        self.models[request.model_key] = replace(held, acls=dict(request.acls.items))
        return modelet_pb2.UpdateLoadedResponse()

    async def Unload(self, request: Any, context: Any) -> modelet_pb2.UnloadResponse:
        self.terms.add(request.term)
        self.calls.append(("unload", request.model_key))
        self.models.pop(request.model_key, None)
        return modelet_pb2.UnloadResponse()

    async def Dispute(self, request: Any, context: Any) -> control_pb2.DisputeResponse:
        self.disputes.append((request.term, request.disputed_term))
        self.obeys = 0
        return control_pb2.DisputeResponse()

    async def Weights(self, request: Any, context: Any) -> control_pb2.ReplicaWeights:
        """Has weights of a version, or refuses those of a source that names this server."""
        if request.source and request.source in self.address:
            raise CheckpointError(f"{request.source} is torn")
        if request.action == "update":
            self.weights = request.version
        return control_pb2.ReplicaWeights(version=self.weights, state="serving")

    async def Log(self, request: Any, context: Any) -> control_pb2.LogResponse:
        """Has one line: its address."""
        line = control_pb2.LogLine(at_s=5.0, level="info", logger="fake", text=self.address)
        return control_pb2.LogResponse(lines=[line])

    async def Check(self, request: Any, context: Any) -> control_pb2.CheckResponse:
        self.checks += 1
        if self.cannot_check:
            raise UnsupportedParameter("no such method")
        self._check(request.overrides)
        if request.checkpoint and self.bad_checkpoint is not None:
            raise self.bad_checkpoint
        pinned = f"{request.checkpoint}{self.pins}" if request.checkpoint else ""
        return control_pb2.CheckResponse(checkpoint=pinned)

    def _check(self, overrides: Mapping[str, str]) -> None:
        if self.bad_override in overrides:
            param = f"overrides.{self.bad_override}"
            raise InvalidRequest(f"unknown override {self.bad_override!r}", param=param)

    async def GetStatus(self, request: Any, context: Any) -> modelet_pb2.GetStatusResponse:
        self.terms.add(request.term)
        if self.obeys:
            raise NotLeading(f"this server obeys term {self.obeys}", param=str(self.obeys))
        held = tuple(self.models.values())
        memory = 1000 * len(held)
        status = ServerStatus(
            held,
            self.incarnation,
            2**30,
            memory,
            dormant=self.dormant,
            draining=self.draining,
        )
        reply = encode_status(status)
        self.polls.append(request.include_method_stats)
        if request.include_method_stats:
            for model in reply.models:
                model.method_stats.extend(self.stats)
        return reply
