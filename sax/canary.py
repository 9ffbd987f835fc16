"""A canary's share of the requests, and the number of replicas that serve it."""

from __future__ import annotations

import math

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.types import Canary, ModelSpec

_WHOLE = 100.0


def read_percent(text: str, param: str = "canary") -> float:
    """Return the percentage that a text like "10%" or "2.5" gives. Raises InvalidRequest."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise InvalidRequest(
            f"{param} is {quoted(text)}: give a percentage of the requests, such as 10%",
            param=param,
        ) from None
    return check_percent(percent, param)


def check_percent(percent: float, param: str = "canary") -> float:
    """Return a canary's percentage unchanged. Raises InvalidRequest."""
    if not math.isfinite(percent) or not 0 < percent < _WHOLE:
        raise InvalidRequest(
            f"{param} is {percent:g} %: give more than 0 and less than 100 % of the requests; "
            "`sax promote` gives a canary all of them, and `sax abort` none",
            param=param,
        )
    return percent


def canary_replicas(replicas: int, percent: float) -> int:
    """Return how many of a model's replicas serve the canary: its share, at least one, not all."""
    if replicas < 2:
        return 0
    return min(replicas - 1, max(1, round(replicas * percent / _WHOLE)))


def replicas_with_canary(replicas: int, canary: Canary | None) -> int:
    """Return how many replicas a model has with its canary: one more beside a lone one."""
    return 2 if canary is not None and replicas == 1 else replicas


def canary_spec(spec: ModelSpec, canary: Canary) -> ModelSpec:
    """Return the spec of a model as it is once its canary is promoted."""
    return ModelSpec(
        model_id=spec.model_id,
        model_path=spec.model_path,
        checkpoint=canary.checkpoint,
        replicas=spec.replicas,
        overrides=canary.overrides,
        acls=spec.acls,
        admin_acl=spec.admin_acl,
        version=canary.version,
        revision=spec.revision,
        autoscaling=spec.autoscaling,
        placement=spec.placement,
    )
