"""Records of one batch on the store, and the state of the batch that follows from them.

order        as it was asked for; never changes
checked      the input file is in order, and so many lines long
cancelling   someone asked to cancel it
log/N        results of lines, or the end of the batch: numbered and created once each, so that of
             two gateways that both believe to run it only one can write the next
claims/N     the gateway that runs it; the newest claim counts
beats/N      a sign of life of that gateway, with the counts so far
done         the outcome
"""

from __future__ import annotations

from typing import Any

import msgspec


class BatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str  # folder of the key
    key: str  # name of the key; "": there are none
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_ttl_s: int | None = None


class BatchChecked(msgspec.Struct, frozen=True):
    total: int
    at: int


class LineResult(msgspec.Struct, frozen=True):
    """One answered line, as the output or error file has it."""

    line: int  # from 1
    good: bool
    text: str


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    writer: str
    results: list[LineResult] = []
    ending: str = ""  # completed, expired or cancelled: the last entry
    at: int = 0


class BatchBeat(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    completed: int
    failed: int
    resigned: bool = False


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """A reason that no line was run."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchDone(msgspec.Struct, frozen=True, kw_only=True):
    status: str  # completed, failed, expired or cancelled
    at: int
    finalizing_at: int | None = None
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    faults: list[BatchFault] = []


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """All of one batch that its description needs."""

    order: BatchOrder
    checked: BatchChecked | None = None
    cancelling_at: int | None = None
    beat: BatchBeat | None = None
    done: BatchDone | None = None
    finalizing_at: int | None = None

    @property
    def status(self) -> str:
        if self.done is not None:
            return self.done.status
        if self.cancelling_at is not None:
            return "cancelling"
        if self.checked is None:
            return "validating"
        return "finalizing" if self.finalizing_at is not None else "in_progress"

    def body(self) -> dict[str, Any]:
        """Return the batch as OpenAI's API has it."""
        order, done = self.order, self.done
        ended = {f"{done.status}_at": done.at} if done else {}
        return {
            "id": order.id,
            "object": "batch",
            "endpoint": order.endpoint,
            "errors": self._errors(),
            "input_file_id": order.input_file_id,
            "completion_window": order.completion_window,
            "status": self.status,
            "output_file_id": done.output_file_id if done else None,
            "error_file_id": done.error_file_id if done else None,
            "created_at": order.created_at,
            "in_progress_at": self.checked.at if self.checked else None,
            "expires_at": order.expires_at,
            "finalizing_at": done.finalizing_at if done else self.finalizing_at,
            "completed_at": ended.get("completed_at"),
            "failed_at": ended.get("failed_at"),
            "expired_at": ended.get("expired_at"),
            "cancelling_at": self.cancelling_at,
            "cancelled_at": ended.get("cancelled_at"),
            "request_counts": self._counts(),
            "metadata": order.metadata,
        }

    def _errors(self) -> dict[str, Any] | None:
        if self.done is None or not self.done.faults:
            return None
        return {"object": "list", "data": [msgspec.to_builtins(f) for f in self.done.faults]}

    def _counts(self) -> dict[str, int]:
        counted = self.done or self.beat
        return {
            "total": self.checked.total if self.checked else 0,
            "completed": counted.completed if counted else 0,
            "failed": counted.failed if counted else 0,
        }
