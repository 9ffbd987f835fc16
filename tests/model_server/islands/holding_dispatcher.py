"""A dispatcher that holds back all answers but those of fetches: clients must not need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.http2.connection import OpenCall
from model_server.pathways.protocol import IfrtRequest, IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.service import SERVICE, service_of

FETCH = "copy_to_host_buffer_request"
_KEPT_BACK = ("HostBufferStore", "HostBufferDelete")


class HoldingDispatcher(Dispatcher):
    """Dispatches everything; while it holds answers back, it counts what clients send."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.counts: Counter[str] = Counter()  # requests by kind, and calls by method
        self._held: list[Callable[[], None]] = []
        self._kinds: dict[int, str] = {}  # of requests without an answer, by operation

    def begin(self) -> None:
        self.counts.clear()
        self.holds = True

    def let_go(self) -> int:
        """Hold no more; returns how many answers were kept back."""
        self.holds = False
        held, self._held = self._held, []
        for answer in held:
            answer()
        return len(held)

    def service(self) -> Mapping[str, OpenCall]:
        """Return the methods of a proxy server."""
        return {path: self._noting(path, opens) for path, opens in service_of(self).items()}

    def _noting(self, path: str, opens: OpenCall) -> OpenCall:
        method = path.removeprefix(f"/{SERVICE}/")

        def noting(call: GrpcCall) -> Any:
            self.counts[method] += 1
            if self.holds and method in _KEPT_BACK:
                self._keep_back(call)
            return opens(call)

        return noting

    def _keep_back(self, call: GrpcCall) -> None:
        """Keep back what this call answers."""
        of: Any = call
        send, end = call.send, call.end
        of.send = lambda *parts: self._held.append(lambda: send(*parts))
        of.end = lambda *status: self._held.append(lambda: end(*status))

    def open(self, **given: Any) -> ClientSession:
        session = super().open(**given)
        answer = session.answer

        def held(response: bytes) -> None:
            kind = self._kinds.pop(IfrtResponse.FromString(response).response_metadata.op_id)
            if self.holds and kind != FETCH:
                self._held.append(lambda: answer(response))
            else:
                answer(response)

        session.answer = held
        return session

    async def serve(self, session: ClientSession, raw: bytes) -> None:
        request = IfrtRequest.FromString(raw)
        kind = request.WhichOneof("request") or ""
        self.counts[kind] += 1
        self._kinds[request.request_metadata.op_id] = kind
        await super().serve(session, raw)
