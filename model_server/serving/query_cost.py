"""Query cost: device time of one request, as Saxml's trailer `query_cost_v0` tells it.

Steps serve many requests at once. A request is charged the time that the engine spent on steps
while it ran, on every device, by its share of the tokens that were computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from model_server.engine.engine import EngineStats

TRAILER = "query_cost_v0"


class CostMeter:
    """Measures one request, from when it is made."""

    def __init__(self, stats: Callable[[], EngineStats], devices: int) -> None:
        self._stats = stats
        self._devices = devices
        self._before = stats()

    def milliseconds(self, tokens: int) -> int:
        """Return the cost of a request for which so many tokens were computed, in device-ms."""
        return cost_ms(self._before, self._stats(), tokens, self._devices)


def cost_ms(before: EngineStats, after: EngineStats, tokens: int, devices: int) -> int:
    """Return device-milliseconds: at least 1 for a request that computed anything."""
    computed = _computed(after) - _computed(before)
    if not computed or not tokens:
        return 0
    share = min(1.0, tokens / computed)
    return max(1, round(1000 * (after.busy_s - before.busy_s) * devices * share))


def _computed(stats: EngineStats) -> int:
    return stats.prefill_tokens + stats.decode_tokens
