"""A model's number of replicas: its range, and operators' changes to its autoscaling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sax.errors import InvalidRequest
from sax.fields.table import MOST_REPLICAS
from sax.types import Autoscaling

_BEYOND = 2**31  # int32 on the wire


def check_replicas(count: int, param: str = "replicas") -> int:
    """Return a number of replicas unchanged. Raises InvalidRequest."""
    if not 0 <= count <= MOST_REPLICAS:
        raise InvalidRequest(
            f"{count} replicas: use 0 (published, but loaded nowhere) to {MOST_REPLICAS}",
            param=param,
        )
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingChange:
    """Partial change of the bounds; None keeps a bound, or its default if there was none."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    target_queue: float | None = None

    def applied_to(self, old: Autoscaling | None, replicas: int = 1) -> Autoscaling:
        """Return the complete bounds. A first `max_replicas` defaults to `replicas`, or to
        `min_replicas` if that is more."""
        before = old or Autoscaling(max_replicas=max(1, replicas, self.min_replicas or 0))
        return Autoscaling(
            min_replicas=_or(self.min_replicas, before.min_replicas),
            max_replicas=_or(self.max_replicas, before.max_replicas),
            target_queue=before.target_queue if self.target_queue is None else self.target_queue,
        )


# "off": the spec's number of replicas, regardless of load.
Scaling = Autoscaling | ScalingChange | Literal["off"]


def settle(said: Scaling | None, old: Autoscaling | None, replicas: int) -> Autoscaling | None:
    """Return the new autoscaling; None keeps the old one. Raises InvalidRequest by field."""
    if said is None:
        return old
    if said == "off":
        return None
    return _checked(said.applied_to(old, replicas) if isinstance(said, ScalingChange) else said)


def named(
    min_replicas: int | None, max_replicas: int | None, target_queue: float | None
) -> ScalingChange | None:
    if min_replicas is None and max_replicas is None and target_queue is None:
        return None
    return ScalingChange(
        min_replicas=min_replicas, max_replicas=max_replicas, target_queue=target_queue
    )


def _checked(autoscaling: Autoscaling) -> Autoscaling:
    """Check what the wire can carry; the admin server checks the remaining rules."""
    for field in ("min_replicas", "max_replicas"):
        count: int = getattr(autoscaling, field)
        if not 0 <= count < _BEYOND:
            raise InvalidRequest(
                f"{field} is {count}; it must be 0 or more", param=f"autoscaling.{field}"
            )
    if not math.isfinite(autoscaling.target_queue):
        raise InvalidRequest(
            f"target_queue is {autoscaling.target_queue}; it must be a number above 0",
            param="autoscaling.target_queue",
        )
    return autoscaling


def _or(said: int | None, before: int) -> int:
    return before if said is None else said
