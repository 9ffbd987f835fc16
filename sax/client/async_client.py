"""Client of one cell for asyncio: operators' calls go to the admin, requests to replicas."""

from __future__ import annotations

from types import TracebackType

from sax.client.admin import Admin
from sax.client.attempts import RetryLimits
from sax.client.history import HistoryCalls
from sax.client.locator import Locator
from sax.client.operator_calls import OperatorCalls
from sax.client.request_calls import RequestCalls
from sax.client.weights import WeightCalls


class AsyncClient(OperatorCalls, HistoryCalls, WeightCalls, RequestCalls):
    """Client of one cell. Create, use and close it in one event loop."""

    def __init__(
        self, admin: str | None = None, *, patience: RetryLimits | None = None, preferred: str = ""
    ) -> None:
        """`admin` is host:port of the cell's admin server; None finds it (`sax.client.location`).
        `preferred` is the host:port of a model server to use first while it is ready."""
        self._admin = Admin(admin)
        self._locator = Locator(self._admin, self._explain, patience, preferred)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; requests in progress fail with Cancelled."""
        await self._locator.close()
        await self._admin.close()
