"""What a model asks of a server: read from its placement and from Saxml's overrides."""

from dataclasses import replace

import pytest

from admin_server.ledger.placement import (
    check_placement,
    demand_of,
    devices_of,
    loaded_overrides,
    stated_bytes,
)
from sax.errors import InvalidRequest
from sax.types import ModelSpec, Placement, ServerInfo
from tests.each_case import each_case

SPEC = ModelSpec(model_id="/sax/test/m", model_path="saxml.server.a.B", checkpoint="c", replicas=1)


def spec(overrides: dict[str, str] | None = None, **placement) -> ModelSpec:
    return replace(SPEC, overrides=overrides or {}, placement=Placement(**placement))


def server(**settings) -> ServerInfo:
    return ServerInfo(address="h:1", **settings)


@each_case(
    "topology, devices",
    [
        ("1", 1),
        ("16", 16),
        ("4x8", 32),
        ("2x2x4", 16),
        ("4x4x8_twisted", 128),
        ("4X4x8_Untwisted", 128),
        ("", 0),
        ("unknown", 0),
        ("4x", 0),
        ("x4", 0),
        ("4x-8", 0),
        ("0x4", 0),
        ("9" * 5000, 0),
        ("٣", 0),
    ],
)
def test_devices_are_the_product_of_the_topology_or_not_known(topology, devices):
    assert devices_of(server(chip_topology=topology)) == devices


def test_what_a_server_says_of_its_devices_beats_its_topology():
    assert devices_of(server(chip_topology="4x8", devices=8)) == 8


def test_tags_come_from_the_placement_and_from_saxmls_constraints():
    demand = demand_of(spec({"constraints": '"fast, a100 ,,fast"'}, tags=("spot",), devices=4))
    assert (demand.path, demand.tags, demand.devices) == ("a.B", ("a100", "fast", "spot"), 4)
    assert demand.met_by(frozenset({"a.B"}), frozenset({"fast", "a100", "spot", "x"}), 4)
    assert not demand.met_by(frozenset({"a.B"}), frozenset({"fast", "a100"}), 4)
    assert not demand.met_by(frozenset({"a.B"}), frozenset({"fast", "a100", "spot"}), 3)
    assert not demand.met_by(frozenset({"B"}), frozenset({"fast", "a100", "spot"}), 4)


@each_case(
    "overrides, devices, stated",
    [
        ({}, 8, None),
        ({"ram": "100"}, 8, 800),
        ({"ram": '"100"'}, 8, 800),
        ({"ram": "1e3"}, 4, 4000),
        ({"ram": "100", "ram8": "70"}, 8, 560),
        ({"ram": "100", "ram8": "70"}, 4, 400),
        ({"ram8": "70"}, 4, None),
        ({"ram": "100"}, 0, None),  # so many bytes for each of nobody knows how many
    ],
)
def test_saxmls_ram_is_bytes_for_each_device(overrides, devices, stated):
    assert stated_bytes(spec(overrides), devices) == stated


def test_the_placements_memory_is_of_the_whole_server_and_beats_ram():
    assert stated_bytes(spec({"ram": "100"}, memory=5000), 8) == 5000


def test_overrides_that_place_are_not_for_the_model_server():
    overrides = {"constraints": '"a"', "ram": "1", "ram16": "1", "ramp": "1", "DTYPE": '"x"'}
    assert loaded_overrides(overrides) == {"ramp": "1", "DTYPE": '"x"'}


@each_case(
    "bad",
    [
        {"constraints": "5"},
        {"constraints": '["a100"]'},
        {"constraints": "null"},
        {"ram": '"much"'},
        {"ram": "true"},
        {"ram": "-1"},
        {"ram": "0"},
        {"ram": "1e300"},
        {"ram": '"nan"'},
        {"ram8": "[]"},
    ],
)
def test_an_override_of_the_wrong_type_is_refused_by_name(bad):
    with pytest.raises(InvalidRequest, match=next(iter(bad))) as failure:
        check_placement(spec(bad))
    assert failure.value.param == "overrides"


@each_case(
    "bad", [{"devices": -1}, {"memory": -1}, {"tags": ("",)}, {"tags": ("a,b",)}, {"tags": (" a",)}]
)
def test_a_placement_that_cannot_be_is_refused_by_name(bad):
    with pytest.raises(InvalidRequest) as failure:
        check_placement(spec(**bad))
    assert failure.value.param == "placement"


def test_a_good_placement_is_taken():
    good = {"constraints": '"a100,fast"', "ram": "1000000", "ram16": '"2000000"'}
    check_placement(spec(good, tags=("a-100", "zone b"), devices=32, memory=2**40))


@each_case(
    "tags, does",
    [
        ((), True),
        (("fast",), True),
        (("model:/sax/test/m",), True),
        (("model:/sax/test/m", "model:/sax/test/n"), True),
        (("model:/sax/test/n",), False),
        (("fast", "model:/sax/test/n"), False),
    ],
)
def test_a_server_that_is_reserved_for_other_models_does_not_do(
    tags: tuple[str, ...], does: bool
) -> None:
    assert demand_of(SPEC).met_by_server(server(model_paths=("a.B",), tags=tags)) is does
