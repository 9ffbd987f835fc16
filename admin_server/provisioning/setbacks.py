"""Failures with objects of models in Kubernetes, and when each is retried. Plain bookkeeping."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class Setback:
    """The last failure for a model."""

    count: int  # in a row
    reason: str
    next_try_s: float


class Setbacks:
    def __init__(self, jitter: random.Random, first_retry_s: float = _FIRST_RETRY_S) -> None:
        self._jitter = jitter
        self._first_retry_s = first_retry_s
        self._by_model: dict[str, Setback] = {}

    def all(self) -> Mapping[str, Setback]:
        """All that have not recovered."""
        return dict(self._by_model)

    def note(self, model_id: str, reason: str, now: float) -> Setback:
        """Record a failure now: each wait is twice as long as the last."""
        known = self._by_model.get(model_id)
        count = 1 + (known.count if known is not None else 0)
        wait = min(_LONGEST_RETRY_S, self._first_retry_s * 2 ** min(count - 1, 16))
        setback = Setback(count, reason, now + wait * self._jitter.uniform(0.8, 1.2))
        self._by_model[model_id] = setback
        return setback

    def heal(self, model_id: str) -> None:
        self._by_model.pop(model_id, None)

    def keep(self, models: Collection[str]) -> None:
        self._by_model = {m: s for m, s in self._by_model.items() if m in models}
