"""The Control service: calls of an admin server beyond Saxml's Modelet. Decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from model_server.engine.worker import Worker
from model_server.services.fencing import Fencing
from model_server.serving.admission import check_admin
from sax.auth.acl import caller
from sax.auth.security import OPEN_TO_ALL, Security
from sax.errors import CheckpointUnreachable
from sax.proto import control_pb2, control_pb2_grpc

# Raises InvalidRequest if no load of the model path with these overrides can succeed.
CheckOverrides = Callable[[str, Mapping[str, str]], None]
# Returns a checkpoint with the commit that its revision means now; a path unchanged. Blocks while
# a hub is asked. Raises CheckpointError if no load here can fetch it.
PinCheckpoint = Callable[[str], str]
_PIN_S = 6.0  # the admin server, and whoever publishes, wait a little longer


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
    ) -> None:
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
