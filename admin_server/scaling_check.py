"""Validation of autoscaling settings."""

from __future__ import annotations

import math

from sax.errors import InvalidRequest
from sax.types import Autoscaling


def check_autoscaling(autoscaling: Autoscaling | None, most_replicas: int) -> None:
    """Raises InvalidRequest naming the field at fault."""
    if autoscaling is None:
        return
    least, most = autoscaling.min_replicas, autoscaling.max_replicas
    if least < 0:
        raise _refusal("min_replicas", f"{least}: write 0 (none while nobody asks) or more")
    if most < 1:
        raise _refusal("max_replicas", f"{most}: write 1 or more")
    if most > most_replicas:
        raise _refusal("max_replicas", f"{most}: a model has {most_replicas} replicas at most")
    if least > most:
        raise _refusal("min_replicas", f"{least} is above max_replicas {most}: write up to {most}")
    target = autoscaling.target_queue
    if not (math.isfinite(target) and target > 0):
        raise _refusal("target_queue", f"{target}: write a number above 0, as in 4")


def _refusal(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {text}", param=f"autoscaling.{field}")
