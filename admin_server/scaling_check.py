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
        raise _refusal("min_replicas", f"{least}: use 0 (none while idle) or more")
    if most < 1:
        raise _refusal("max_replicas", f"{most}: use 1 or more")
    if most > most_replicas:
        raise _refusal("max_replicas", f"{most}: a model can have at most {most_replicas} replicas")
    if least > most:
        raise _refusal("min_replicas", f"{least} is above max_replicas {most}: use at most {most}")
    target = autoscaling.target_queue
    if not (math.isfinite(target) and target > 0):
        raise _refusal("target_queue", f"{target}: use a number above 0, such as 4")


def _refusal(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {text}", param=f"autoscaling.{field}")
