"""Activity of one loaded model: how busy it is, totals since it was loaded, phases of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How far a request is at its model server, in this order: its prompt becomes tokens, it waits for
# a slot, its prompt is computed, its answer is.
ServedPhase = Literal["encoding", "queued", "prefill", "decode"]
SERVED_PHASES: tuple[ServedPhase, ...] = ("encoding", "queued", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """All 0 for a model that is no language model, or of a server that does not tell.

    Totals only grow while a model stays loaded: the difference of two divided by the time between
    them is a rate.
    """

    slots: int = 0
    slots_used: int = 0
    pages: int = 0  # of KV
    pages_used: int = 0
    prompt_tokens: int = 0  # total of accepted prompts
    cached_tokens: int = 0  # total of those that were found in the prefix cache
    generated_tokens: int = 0  # total
    answers_begun: int = 0  # total
    first_token_s: float = 0.0  # from arrival to the first token, sum over answers_begun
    answers_timed: int = 0  # total that ended, with two tokens or more
    token_interval_s: float = 0.0  # mean time per token after the first, sum over answers_timed


IDLE = Activity()
