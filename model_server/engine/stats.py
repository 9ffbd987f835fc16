"""What a scheduler or an engine has at one moment, and its totals. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SchedulerLoad(NamedTuple):
    """Sequences, slots and pages now; the rest since the start."""

    live: int  # sequences; those of a group count one by one
    running: int
    waiting: int
    accounts: int  # with live sequences
    slots_used: int
    pages_used: int
    window_pages_used: int  # of the layers with a window, if they have their own
    pages_cached: int  # that nobody holds and that others may still find
    steps: int  # scheduled
    tokens: int  # generated
    prefill_tokens: int  # computed, including recomputed ones
    decode_tokens: int  # computed, including surplus ones
    preemptions: int
    finished: int
    cancelled: int
    prefix_queries: int  # tokens of sequences when they first took a slot
    prefix_hits: int  # those of them that were cached
    prefix_evictions: int  # cached pages that were granted anew


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Current load of the engine, and totals since it started."""

    running: int
    waiting: int
    slots: int
    slots_used: int
    pages: int
    pages_used: int
    steps: int  # launched
    tokens: int  # generated
    prefill_tokens: int  # computed, including recomputed ones
    decode_tokens: int  # computed, including surplus ones
    preemptions: int
    finished: int
    cancelled: int
    pages_cached: int  # free, and readable for requests that begin alike
    prefix_queries: int  # tokens of sequences when they first took a slot
    prefix_hits: int  # those of them that were cached
    prefix_evictions: int  # cached pages that were granted anew
    draft_tokens: int  # tokens computed before they were known to be the answer's
    draft_tokens_accepted: int  # those that were
    busy_s: float  # spent on steps
