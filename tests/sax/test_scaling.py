"""What is said of autoscaling, and what is meant."""

from __future__ import annotations

import math

import pytest

from sax.client import AsyncClient
from sax.errors import InvalidRequest
from sax.scaling import Scaling, ScalingChange, named, settle
from sax.types import Autoscaling
from tests.each_case import each_case
from tests.sax.fake_admin import FakeAdmin

OLD = Autoscaling(min_replicas=1, max_replicas=4, target_queue=2)
NEW = "/sax/test/new"


@each_case(
    "said, old, replicas, meant",
    [
        (None, None, 1, None),
        (None, OLD, 1, OLD),
        ("off", OLD, 1, None),
        (Autoscaling(min_replicas=0), OLD, 1, Autoscaling(min_replicas=0)),
        (
            ScalingChange(max_replicas=8),
            OLD,
            1,
            Autoscaling(min_replicas=1, max_replicas=8, target_queue=2),
        ),
        (ScalingChange(min_replicas=0), None, 1, Autoscaling(min_replicas=0, max_replicas=1)),
        (ScalingChange(min_replicas=0), None, 0, Autoscaling(min_replicas=0, max_replicas=1)),
        (ScalingChange(target_queue=3), None, 5, Autoscaling(max_replicas=5, target_queue=3)),
        (ScalingChange(min_replicas=2), None, 1, Autoscaling(min_replicas=2, max_replicas=2)),
    ],
)
def test_what_is_not_named_stays_or_is_the_default(
    said: Scaling | None, old: Autoscaling | None, replicas: int, meant: Autoscaling | None
) -> None:
    assert settle(said, old, replicas) == meant


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (ScalingChange(min_replicas=-1), "min_replicas"),
        (ScalingChange(max_replicas=2**31), "max_replicas"),
        (ScalingChange(target_queue=math.nan), "target_queue"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_field(said: Scaling, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        settle(said, None, 1)
    assert refusal.value.param == f"autoscaling.{field}"


def test_nothing_named_is_nothing_said() -> None:
    assert named(None, None, None) is None
    assert named(0, None, None) == ScalingChange(min_replicas=0)


@pytest.mark.extended
async def test_a_publication_and_its_updates_carry_it(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    await client.publish(NEW, "llama", "None", autoscaling=OLD)
    assert admin.models[NEW].spec.autoscaling == OLD
    await client.update(NEW, checkpoint="/b")
    assert admin.models[NEW].spec.autoscaling == OLD
    await client.update(NEW, autoscaling=ScalingChange(min_replicas=0))
    assert (await client.list(NEW)).spec.autoscaling == Autoscaling(
        min_replicas=0, max_replicas=4, target_queue=2
    )
    await client.update(NEW, autoscaling="off")
    assert admin.models[NEW].spec.autoscaling is None
