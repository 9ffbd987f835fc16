"""Computes prompts for other servers, which decode them."""

from __future__ import annotations

from typing import Any

from model_server.disaggregation.handoff import decode_ask, decode_contract, encode_handoff
from model_server.serving.admission import Admission, check_admin
from model_server.serving.prefiller import Prefiller
from sax.auth.acl import caller
from sax.auth.security import Security
from sax.proto import prefill_pb2, prefill_pb2_grpc


class PrefillService(prefill_pb2_grpc.PrefillServiceServicer):
    """For callers that may load models here: other servers of the same operator."""

    def __init__(self, prefiller: Prefiller, admission: Admission, security: Security) -> None:
        self._prefiller = prefiller
        self._admission = admission
        self._security = security

    async def Prefill(self, request: Any, context: Any) -> prefill_pb2.Ticket:
        """Returns once the prompt is computed and its pages can be fetched."""
        self._check()
        self._admission.check_open()
        self._admission.enter()
        try:
            handoff = await self._prefiller.compute(
                request.model_key,
                decode_contract(request.contract),
                decode_ask(request),
                request.key,
            )
        finally:
            self._admission.leave()
        return encode_handoff(handoff)

    async def Release(self, request: Any, context: Any) -> prefill_pb2.ReleaseResponse:
        self._check()
        self._prefiller.release(request.key)
        return prefill_pb2.ReleaseResponse()

    def _check(self) -> None:
        if self._security.authenticates:
            check_admin(caller(), self._security.admins, "have prompts computed")
