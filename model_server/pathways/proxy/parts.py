"""Parts of a request that goes to several islands, and their answers."""

from __future__ import annotations

from typing import Any

from model_server.pathways.protocol.messages import IfrtResponse
from model_server.pathways.scheduling.handles import DATA_LOSS, Fault, IslandLife
from model_server.pathways.scheduling.merging import Reply
from model_server.pathways.scheduling.summary import Summary, answered_handles


def part_of(request: Any, summary: Summary, handles: tuple[int, ...], raw: bytes) -> bytes:
    """Return the request with these of its handles only, serialized; `raw` if these are all."""
    if handles == summary.reads:
        return raw
    part = type(request)()
    part.CopyFrom(request)
    body = getattr(part, summary.kind)
    (field,) = (*summary.row.reads, *summary.row.destroys)
    if isinstance(getattr(body, field), int):
        setattr(body, field, handles[0])
    else:
        del getattr(body, field)[:]
        getattr(body, field).extend(handles)
    return part.SerializeToString()


class Gathering:
    """Answers of the parts of one request."""

    def __init__(self, parts: int, fault: Fault | None) -> None:
        self._missing = parts
        self._replies: list[tuple[IslandLife, Any]] = []
        self.fault = fault  # the first there was
        self.only_lost = fault is None or fault.code == DATA_LOSS

    def answered(self, life: IslandLife, outcome: Reply | Fault) -> bool:
        """Take the answer of one part; True with the last one."""
        self._missing -= 1
        if not isinstance(outcome, Fault):
            response = IfrtResponse.FromString(outcome.response)
            self._replies.append((life, response))
            status = response.response_metadata.status
            outcome = Fault(status.code, status.message)
        if outcome.code:
            self.fault = self.fault or outcome
            self.only_lost = self.only_lost and outcome.code == DATA_LOSS
        return not self._missing

    def handles(self, summary: Summary) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the handles that the workers chose, by island."""
        return tuple(
            (life.island, answered_handles(getattr(response, summary.response), summary.row))
            for life, response in self._replies
        )
