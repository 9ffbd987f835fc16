"""The Control service: calls of an admin server beyond Saxml's Modelet. Decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from model_server.services.fencing import Fencing
from model_server.serving.admission import check_admin
from sax.auth.acl import caller
from sax.auth.security import OPEN_TO_ALL, Security
from sax.proto import control_pb2, control_pb2_grpc

# Raises InvalidRequest if no load of the model path with these overrides can succeed.
CheckOverrides = Callable[[str, Mapping[str, str]], None]
# Returns a checkpoint with the commit that its revision means now; a path unchanged. Blocks while
# a hub is asked. Raises CheckpointError if no load here can fetch it.
PinCheckpoint = Callable[[str], str]


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
    ) -> None:
        self._fencing = fencing
        self._check_overrides = check_overrides
        self._pin_checkpoint = pin_checkpoint
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
            pinned = await asyncio.to_thread(self._pin_checkpoint, request.checkpoint)
        return control_pb2.CheckResponse(checkpoint=pinned)

    def _check_admin(self, doing: str) -> None:
        if self._security.authenticates:
            check_admin(caller(), self._security.admins, doing)
