"""RequestRecord: the facts of one HTTP request, for its access line, its key's limits and metrics.

Each part of the gateway writes what it learns; nothing is written per token.
"""

from __future__ import annotations

import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, field

from http_gateway.access.request_span import RequestSpan

_current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


@dataclass(slots=True)
class RequestRecord:
    request_id: str = ""
    method: str = ""
    arrived_s: float = field(default_factory=time.perf_counter)
    key: str = ""  # name of its key, or the client's address
    cell_ids: list[str] = field(default_factory=list[str])  # of its answers, at model servers
    model: str = ""  # full name, only of a published model: metrics have it as a label
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    queue_s: float | None = None  # at a model server, of its answer that waited longest
    generic_tools: bool = False  # sax told the model of its tools: its template has no place
    span: RequestSpan | None = None  # None: nobody traces it
    ending: str = ""  # of a stream, or "gone" for a client that did not wait

    @classmethod
    def current(cls) -> RequestRecord:
        """Return the record of the request that this task answers; a new one outside requests."""
        return _current.get() or cls()

    def enter(self) -> None:
        """Make this the current record of this task and the tasks that it starts."""
        _current.set(self)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def internal_error(self) -> str:
        """The text of an error that only the log explains."""
        return f"internal error: see the gateway's log for request {self.request_id}"

    def id_in_cell(self, reply_id: str) -> str:
        """Return the request id for the cell's logs: unique, however often a client repeats its."""
        return f"{self.request_id}/{reply_id}" if self.request_id else reply_id


def new_request_id() -> str:
    return uuid.uuid4().hex
