"""The autoscaler: how many replicas a model should have now, as a pure function.

The operator's bounds, the current traffic and the previous decision give the next decision and its
reason.

Scales up after the queue has been too long for a while, by as many replicas as the queue calls for;
down one at a time, after one fewer would have been enough for a longer while; and to zero after an
even longer time without requests. It settles under constant load: no step down is one that the same
load would undo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sax.types import Autoscaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTiming:
    """Time a condition must hold before the count changes, in seconds."""

    up_s: float = 10.0  # queue too long
    down_s: float = 60.0  # one replica fewer would be enough
    idle_s: float = 300.0  # no requests; applies if min_replicas is 0
    # A longer gap between two observations counts as this much: a clock that jumped, or a process
    # that was stopped for an hour, has not observed an hour.
    step_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLoad:
    ready: int = 0  # replicas that the next three figures are summed over
    queued: int = 0  # requests waiting for a slot
    running: int = 0
    arrived: int = 0  # requests so far: shows those that came and went between two observations
    held: int = 0  # requests held at gateways until a replica is ready

    @property
    def some(self) -> bool:
        return bool(self.queued or self.running or self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The last decision for one model, and the state for the next one."""

    wanted: int
    cause: str  # why this many
    at_s: float  # time of the decision
    limit: str = ""  # why not more, while the queue calls for more
    arrived: int = 0
    peak: float = 0.0  # the most requests seen running per replica
    # How long each condition has held; None: it does not hold.
    over_s: float | None = None  # the queue calls for at least `asked`
    under_s: float | None = None  # one replica fewer would be enough
    idle_s: float | None = None  # no requests
    asked: int = 0

    @property
    def reason(self) -> str:
        """The text shown to operators."""
        return self.limit or self.cause


def start(bounds: Autoscaling, replicas: int, cause: str, now: float) -> Scaling:
    wanted = _clamp(bounds, replicas)
    return Scaling(wanted=wanted, cause=f"{cause}: {wanted} wanted", at_s=now)


def decide(
    bounds: Autoscaling, before: Scaling, traffic: ScalingLoad, now: float, timing: ScalingTiming
) -> Scaling:
    """The next decision. Total: accepts any bounds, traffic and time."""
    seen = _look(bounds, before, traffic, now, timing)
    wanted, why = _choose(bounds, seen, traffic, timing)
    if wanted != seen.wanted:
        seen = _moved(seen, wanted, f"{why}: {wanted} wanted", traffic)
    limit = _limit(bounds, seen, traffic)
    return seen if limit == seen.limit else replace(seen, limit=limit)


def _look(
    bounds: Autoscaling, before: Scaling, traffic: ScalingLoad, now: float, timing: ScalingTiming
) -> Scaling:
    """Update the observations; decides nothing."""
    step_s = min(max(0.0, now - before.at_s), timing.step_s)
    peak = max(before.peak, _each(traffic.running, traffic))
    busy = traffic.some or traffic.arrived > before.arrived
    over = traffic.ready > 0 and traffic.queued > bounds.target_queue * traffic.ready
    asks = _asks(bounds, traffic) if over else 0
    under = before.wanted > max(1, bounds.min_replicas) and _would_do(
        bounds, traffic, peak, before.wanted - 1
    )
    # Not `replace`, which takes three times as long: this runs for every model in every round.
    return Scaling(
        wanted=before.wanted,
        cause=before.cause,
        limit=before.limit,
        at_s=now,
        arrived=traffic.arrived,
        peak=peak,
        over_s=_lasted(before.over_s, over, step_s),
        under_s=_lasted(before.under_s, under, step_s),
        idle_s=_lasted(before.idle_s, not busy, step_s),
        # The minimum over the window, so that a burst at its end does not count.
        asked=min(asks, before.asked) if before.over_s is not None else asks,
    )


def _choose(
    bounds: Autoscaling, seen: Scaling, traffic: ScalingLoad, timing: ScalingTiming
) -> tuple[int, str]:
    """The count wanted from now on, and why if it changes."""
    within = _clamp(bounds, seen.wanted)
    if within != seen.wanted:
        return within, f"its bounds are {bounds.min_replicas} to {bounds.max_replicas} replicas"
    if seen.wanted == 0 and seen.idle_s is None:
        return 1, _who_asks(traffic)
    if bounds.min_replicas == 0 and _over(seen.idle_s, timing.idle_s):
        return 0, f"no request for {timing.idle_s:g} s"
    more = min(seen.asked, bounds.max_replicas)
    if _over(seen.over_s, timing.up_s) and more > seen.wanted:
        return more, f"{_too_long(bounds, traffic)} for {timing.up_s:g} s"
    if _over(seen.under_s, timing.down_s):
        queue = f"a queue of {traffic.queued} with {traffic.running} running"
        return seen.wanted - 1, f"one fewer was enough for {queue} for {timing.down_s:g} s"
    return seen.wanted, ""


def _moved(seen: Scaling, wanted: int, cause: str, traffic: ScalingLoad) -> Scaling:
    """The count changed: restart every window."""
    up = wanted > seen.wanted
    return replace(
        seen,
        wanted=wanted,
        cause=cause,
        over_s=None,
        under_s=None,
        idle_s=None,
        asked=0,
        # With a queue, replicas already run all they can: the current load is the peak.
        peak=_each(traffic.running, traffic) if up else seen.peak,
    )


def _would_do(bounds: Autoscaling, traffic: ScalingLoad, peak: float, replicas: int) -> bool:
    """True if this many replicas keep the queue short, counting what they cannot run as queued."""
    serving = min(replicas, traffic.ready)
    if not serving:
        return not traffic.some
    queued = float(traffic.queued)
    if serving < traffic.ready:
        queued = max(0.0, queued + traffic.running - serving * peak)
    return queued <= bounds.target_queue * serving


def _limit(bounds: Autoscaling, seen: Scaling, traffic: ScalingLoad) -> str:
    if seen.over_s is None or seen.wanted < bounds.max_replicas:
        return ""
    if _asks(bounds, traffic) <= seen.wanted:
        return ""
    return f"{_too_long(bounds, traffic)}, but max_replicas is {bounds.max_replicas}"


def _asks(bounds: Autoscaling, traffic: ScalingLoad) -> int:
    """The replica count that would bring the queue to its target."""
    return math.ceil(min(traffic.queued / bounds.target_queue, float(bounds.max_replicas + 1)))


def _each(requests: int, traffic: ScalingLoad) -> float:
    return requests / traffic.ready if traffic.ready else 0.0


def _lasted(before_s: float | None, holds: bool, step_s: float) -> float | None:
    if not holds:
        return None
    return 0.0 if before_s is None else before_s + step_s


def _over(lasted_s: float | None, window_s: float) -> bool:
    return lasted_s is not None and lasted_s >= window_s


def _clamp(bounds: Autoscaling, replicas: int) -> int:
    return max(bounds.min_replicas, min(replicas, bounds.max_replicas))


def _too_long(bounds: Autoscaling, traffic: ScalingLoad) -> str:
    replicas = f"{traffic.ready} replica{'s' if traffic.ready != 1 else ''}"
    return f"queue of {traffic.queued} for {replicas} is above {bounds.target_queue:g} each"


def _who_asks(traffic: ScalingLoad) -> str:
    if traffic.held:
        return f"{traffic.held} request{'s are' if traffic.held != 1 else ' is'} held at gateways"
    return "requests arrived while it was being unloaded"
