"""What a spec may hold: every limit names its field."""

from __future__ import annotations

import math

import pytest

from admin_server.ledger.limits import check_autoscaling, check_limits, check_server
from admin_server.ledger.state import CellState, publish_record
from sax.errors import InvalidRequest
from sax.fields.table import SPEC_BYTES
from sax.types import Autoscaling, ModelSpec, Placement, ServerInfo
from tests.each_case import each_case


def spec(**changes) -> ModelSpec:
    settings = {
        "model_id": "/sax/test/m",
        "model_path": "llama",
        "checkpoint": "/one",
        "replicas": 1,
        **changes,
    }
    return ModelSpec(**settings)


@each_case(
    "changes, param",
    [
        ({"model_id": "/sax/test/" + "m" * 200}, "model"),
        ({"model_path": "m" * 401}, "model_path"),
        ({"checkpoint": "/" + "c" * 4096}, "checkpoint"),
        ({"overrides": {f"K{n}": "1" for n in range(257)}}, "overrides"),
        ({"overrides": {"K": '"' + "x" * 65536 + '"'}}, "overrides"),
        ({"overrides": {"K" * 5000: "1"}}, "overrides"),
        ({"overrides": {"K": "[" * 60000}}, "overrides"),
        ({"acls": {f"lm.m{n}": "" for n in range(257)}}, "acls"),
        ({"admin_acl": "a" * 5000}, "admin_acl"),
        ({"overrides": {f"K{n}": '"' + "x" * 60000 + '"' for n in range(5)}}, "model"),
        ({"placement": Placement(tags=("t",) * 65)}, "placement.tags"),
        ({"placement": Placement(tags=("t" * 201,))}, "placement.tags"),
        ({"placement": Placement(devices=-1)}, "placement.devices"),
        ({"placement": Placement(memory=-1)}, "placement.memory_bytes"),
        ({"autoscaling": Autoscaling(target_queue=math.nan)}, "autoscaling.target_queue"),
        ({"autoscaling": Autoscaling(target_queue=math.inf)}, "autoscaling.target_queue"),
    ],
)
def test_a_field_beyond_its_limit_is_refused_by_name(changes, param):
    with pytest.raises(InvalidRequest) as refusal:
        publish_record(CellState("/sax/test"), spec(**changes), version="a" * 32, at_s=0)
    assert refusal.value.param == param
    assert len(refusal.value.text) < 1000


def test_a_uuid_of_a_wrong_length_is_refused():
    with pytest.raises(InvalidRequest, match="a uuid of 3 bytes") as refusal:
        check_limits(spec(version="abcdef"))
    assert refusal.value.param == "uuid"


def test_a_large_spec_within_the_limits_is_taken():
    texts = {f"K{n}": '"' + "x" * 60000 + '"' for n in range(4)}
    check_limits(spec(overrides=texts))
    assert sum(map(len, texts.values())) < SPEC_BYTES


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"devices": -1}, "devices"), ({"memory_total": -1}, "memory_total_bytes")],
)
def test_a_server_that_cannot_be_is_refused(changes, param):
    with pytest.raises(InvalidRequest) as refusal:
        check_server(ServerInfo(address="127.0.0.1:1", **changes))
    assert refusal.value.param == param


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
