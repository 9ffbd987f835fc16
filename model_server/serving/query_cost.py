"""Query cost: device time of one request, as Saxml's trailer `query_cost_v0` tells it.

Steps serve many requests at once. A request is charged the time that the engine spent on steps
while it ran, on every device, by its share of the tokens that were computed meanwhile. Passes that
share no steps, and custom calls, run in batches: each request of a batch pays the same part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model_server.engine.engine import EngineStats


@dataclass(slots=True)
class BatchCost:
    """Device time that batches spent on one request, whose inputs may be in several."""

    device_s: float = 0.0

    def add(self, seconds: float, devices: int, size: int) -> None:
        """Charge this request one input's part of a batch of `size` inputs."""
        self.device_s += seconds * devices / size

    @property
    def milliseconds(self) -> int:
        """Device-ms: at least 1 once a batch ran."""
        return max(1, round(1000 * self.device_s)) if self.device_s else 0


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
