"""A dispatcher that notes which kinds of requests a client sends and how each is answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.http2.connection import OpenCall
from model_server.pathways.protocol import GrpcGetVersionRequest, IfrtRequest, IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.service import SERVICE, service_of


class RecordingDispatcher(Dispatcher):
    """Dispatches everything, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: Any = None  # GrpcGetVersionRequest of the last client
        self.answers: defaultdict[str, Counter[int]] = defaultdict(Counter)  # kind: gRPC codes
        self._kinds: dict[int, str] = {}  # of requests that are not answered, by operation

    def service(self) -> Mapping[str, OpenCall]:
        """Return the methods of a proxy server, which note what clients offer to speak."""
        methods = dict(service_of(self))
        path = f"/{SERVICE}/GetVersion"
        opens = methods[path]

        def noting(call: GrpcCall) -> Any:
            handler: Any = opens(call)
            received = handler.received

            def note(message: bytes) -> None:
                self.offered = GrpcGetVersionRequest.FromString(message)
                received(message)

            handler.received = note
            return handler

        return methods | {path: noting}

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
