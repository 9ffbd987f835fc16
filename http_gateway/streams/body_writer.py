"""BodyWriter: writes a part of a streamed body at once, as an extension of ASGI on our connections.

`send` takes each part through every middleware as a coroutine, and its task has to be woken for it
first: a fifth of what a streamed token costs the gateway.
"""

from __future__ import annotations

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_EXTENSION = "sax.body"


class BodyWriter:
    """Writes to the connection of one request, between the first and the last part of its body."""

    __slots__ = ("_cycle", "size")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self.size = 0  # bytes written here, which `send` has not seen

    @staticmethod
    def of(scope: Scope) -> BodyWriter | None:
        """Return the writer of a request; None on connections that are not ours, as in tests."""
        return scope.get("extensions", {}).get(_EXTENSION)

    def put_into(self, scope: Scope) -> None:
        scope.setdefault("extensions", {})[_EXTENSION] = self

    def write(self, data: bytes) -> bool:
        """Write a part that is not empty. False if that is for `send`: before the head is written,
        while the client reads too slowly, and once it is gone."""
        cycle = self._cycle
        between = cycle.chunked_encoding and not cycle.response_complete
        if not between or cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.size += len(data)
        return True
