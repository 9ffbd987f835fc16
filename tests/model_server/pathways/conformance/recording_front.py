"""A front that notes which kinds of requests a client sends and how each is answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from model_server.pathways.protocol.messages import IfrtRequest, IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.front import Front


class RecordingFront(Front):
    """Everything goes on as in a front."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: defaultdict[str, Counter[int]] = defaultdict(Counter)  # kind: gRPC codes
        self._kinds: dict[int, str] = {}  # of requests that are not answered, by operation

    def open(self, **given: Any) -> ClientSession:
        session = super().open(**given)
        answer = session.answer

        def noted(response: bytes) -> None:
            told = IfrtResponse.FromString(response).response_metadata
            self.answers[self._kinds.pop(told.op_id)][told.status.code] += 1
            answer(response)

        session.answer = noted
        return session

    async def serve(self, session: ClientSession, raw: bytes) -> None:
        request = IfrtRequest.FromString(raw)
        self._kinds[request.request_metadata.op_id] = request.WhichOneof("request") or ""
        await super().serve(session, raw)
