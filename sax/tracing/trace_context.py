"""TraceContext: which span a call belongs to, as W3C's trace context writes it (`traceparent`)."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random

KEY = "traceparent"  # of HTTP headers and gRPC metadata

_WRITTEN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_ids = Random()  # they keep no secret, and several are drawn for each request

_current: ContextVar[str] = ContextVar("traceparent", default="")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span of one trace."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    sampled: bool  # somebody records the trace

    @classmethod
    def root(cls, *, sampled: bool = True) -> TraceContext:
        """Return the first span of a new trace."""
        return cls(_drawn(128), _drawn(64), sampled)

    @classmethod
    def parse(cls, written: str) -> TraceContext | None:
        """Return what a `traceparent` says; None if it says nothing, which is no error."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        told = cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
        later = version != "00"  # of a later version we read what we know
        if version == "ff" or (more and not later) or not (told.trace_id and told.span_id):
            return None
        return told

    def child(self) -> TraceContext:
        """Return a new span of the same trace."""
        return TraceContext(self.trace_id, _drawn(64), self.sampled)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def enter(traceparent: str) -> None:
    """Let the calls of this task, and of those that it starts, belong to this span; "": to none."""
    _current.set(traceparent)


def current() -> str:
    """Return the span that calls of this task belong to; "" for none."""
    return _current.get()


def _drawn(bits: int) -> int:
    return _ids.getrandbits(bits) or 1
