"""The audit log: records of the log as events (who changed what, and when)."""

from __future__ import annotations

from admin_server.ledger.ledger import Entry
from admin_server.ledger.records import kind_of, model_of, version_of
from sax.errors import InvalidRequest
from sax.types import Event

USUAL_EVENTS = 100
_MOST_EVENTS = 1000  # per response; `before` pages further back


def event_of(entry: Entry) -> Event:
    record = entry.record
    return Event(
        sequence=entry.sequence,
        at_s=record.at_s,
        kind=kind_of(record),
        model_id=model_of(record),
        by=record.by,
        version=version_of(record),
        text=record.note,
    )


def check_page(before: int, limit: int) -> int:
    """The number of events to return. Raises InvalidRequest naming the bad number."""
    if before < 0:
        raise InvalidRequest(
            f"before {before}: use the number of an event, or 0 for the newest", param="before"
        )
    if not 0 <= limit <= _MOST_EVENTS:
        raise InvalidRequest(
            f"limit {limit}: use 1 to {_MOST_EVENTS}, or 0 for {USUAL_EVENTS}", param="limit"
        )
    return limit or USUAL_EVENTS
