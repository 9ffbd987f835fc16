"""Tracer: the seam between what the servers know of a request's way and who records it.

Spans are values: they are made when what they tell is over, so nothing is held while a request
runs, and a server without traces spends nothing on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sax.tracing.trace_context import TraceContext

Value = str | bool | int | float | Sequence[str]


class SpanKind(Enum):
    """The part of its process in a call."""

    INTERNAL = "internal"
    SERVER = "server"  # it answers one
    CLIENT = "client"  # it makes one


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time, and is over."""

    name: str
    context: TraceContext
    parent: TraceContext | None = None
    remote_parent: bool = False  # the parent is of another process
    kind: SpanKind = SpanKind.INTERNAL
    began_ns: int  # since 1970
    ended_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict[str, Value])
    links: Sequence[TraceContext] = ()
    error: str = ""  # what failed; "": nothing did


class Tracer:
    """Records spans. This one records none."""

    def start(self, parent: TraceContext | None) -> TraceContext | None:
        """Return a new span below this one, or the first of a trace; None if nobody records."""
        return None

    def record(self, spans: Iterable[Span]) -> None:
        """Hand over spans that are over. Never waits."""

    def close(self) -> None:
        """Send what was recorded, within seconds."""


NO_TRACER = Tracer()
