"""Why a model is not ready, in words."""

from __future__ import annotations

from sax.client.operator_calls import not_ready, why_not
from sax.types import (
    Autoscaling,
    ModelSpec,
    Progress,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
)
from tests.each_case import each_case

LOADED = ReplicaStatus("a:1", ServableStatus.LOADED)


def model(*replicas: ReplicaStatus, wanted: int = 1) -> PublishedModel:
    spec = ModelSpec(model_id="/sax/t/m", model_path="m", checkpoint="None", replicas=wanted)
    return PublishedModel(spec, replicas)


@each_case(
    "published, why",
    [
        (model(wanted=0), "0 replicas are wanted"),
        (model(), "no model server has taken it yet"),
        (model(ReplicaStatus("", ServableStatus.NONE, "no server has 8 chips")), "has 8 chips"),
        (model(ReplicaStatus("a:1", ServableStatus.FAILED, "truncated")), "truncated"),
        (model(ReplicaStatus("a:1", ServableStatus.UNLOADING)), "unloading on a:1"),
        (
            model(ReplicaStatus("a:1", ServableStatus.LOADING, "", Progress("compiling", 3, 8))),
            "compiling 3 of 8",
        ),
        (
            model(ReplicaStatus("a:1", ServableStatus.LOADING, "", Progress("starting"))),
            "starting",
        ),
        (model(LOADED, ReplicaStatus("b:2", ServableStatus.FAILED, "no room")), "no room"),
        (model(LOADED), "just become ready"),
    ],
)
def test_the_first_reason_is_given(published: PublishedModel, why: str) -> None:
    assert why in why_not(published)


def test_the_error_names_the_model_and_when_to_come_back() -> None:
    error = not_ready(model())
    assert error.text.startswith("/sax/t/m is published, but")
    assert error.retry_after_s


def test_a_model_that_sleeps_says_why() -> None:
    spec = ModelSpec(
        model_id="/sax/t/m",
        model_path="m",
        checkpoint="None",
        replicas=1,
        autoscaling=Autoscaling(),
    )
    assert why_not(PublishedModel(spec, (), (), 0, "no request for 300 s")) == (
        "no request for 300 s"
    )
