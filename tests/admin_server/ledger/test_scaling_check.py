"""Bounds that cannot be meant are refused by the field's name."""

from __future__ import annotations

import math

import pytest

from admin_server.ledger.limits import check_autoscaling
from sax.errors import InvalidRequest
from sax.types import Autoscaling
from tests.each_case import each_case


@pytest.mark.parametrize(
    "autoscaling",
    [None, Autoscaling(), Autoscaling(min_replicas=0, max_replicas=1000, target_queue=0.1)],
)
def test_good_bounds_pass(autoscaling: Autoscaling | None) -> None:
    check_autoscaling(autoscaling)


@each_case(
    "changes, field",
    [
        ({"min_replicas": -1}, "min_replicas"),
        ({"min_replicas": 0, "max_replicas": 0}, "max_replicas"),
        ({"max_replicas": 1001}, "max_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
        ({"target_queue": 0.0}, "target_queue"),
        ({"target_queue": -1.0}, "target_queue"),
        ({"target_queue": math.nan}, "target_queue"),
        ({"target_queue": math.inf}, "target_queue"),
    ],
)
def test_bad_bounds_are_refused_by_field(changes: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as refusal:
        check_autoscaling(Autoscaling(**changes))  # pyright: ignore
    assert refusal.value.param == f"autoscaling.{field}"
