"""Stopwatch: the durations of one answer, in nanoseconds, as Ollama names them."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    def __init__(self, clock: Callable[[], float], arrived_s: float) -> None:
        """clock: seconds on the scale of `arrived_s`, when the request came."""
        self._clock = clock
        self._arrived_s = arrived_s
        self._asked_s = clock()
        self._first_s: float | None = None

    def token(self) -> None:
        """Note a token; the first counts."""
        if self._first_s is None:
            self._first_s = self._clock()

    def durations(self) -> dict[str, int]:
        now_s = self._clock()
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "total_duration": _ns(now_s - self._arrived_s),
            "load_duration": _ns(self._asked_s - self._arrived_s),
            "prompt_eval_duration": _ns(first_s - self._asked_s),
            "eval_duration": _ns(now_s - first_s),
        }


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
