"""In which keys two places differ, in words."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from model_server.programs.keys import differences, flags_of
from tests.each_case import each_case
from tests.model_server.programs.made_here import KEYS

MOVED = ("0 at 0,0,0 core 0", "4 at 0,1,0 core 0")
FLAGS = {"XLA_FLAGS": "--xla_a=1", "LIBTPU_INIT_ARGS": ""}


def test_the_same_keys_differ_in_nothing() -> None:
    assert differences(KEYS, replace(KEYS)) == []


@each_case(
    "here, words",
    [
        ({"libtpu": "0.0.53"}, ["made for libtpu 0.0.52, this server has 0.0.53"]),
        ({"jax": "0.11.0"}, ["made for jax 0.10.2, this server has 0.11.0"]),
        ({"machine": "AMD"}, ["made for machine none, this server has AMD"]),
        ({"flags": FLAGS}, ["made for XLA_FLAGS none, this server has --xla_a=1"]),
        (
            {"chip": "TPU v6 lite", "devices": MOVED},
            ["made for chip TPU v5 lite, this server has TPU v6 lite"],
        ),
        (
            {"hosts": 2, "devices_per_host": 1},
            ["made for a slice of 1 host with 2 devices, this server has 2 hosts with 1 devices"],
        ),
        (
            {"devices": MOVED},
            [
                "made for device 1 at 1,0,0 core 0 at place 1 of the mesh, this server has "
                "device 4 at 0,1,0 core 0"
            ],
        ),
    ],
)
def test_what_differs_is_named_with_both_values(here: dict[str, Any], words: list[str]) -> None:
    assert differences(KEYS, replace(KEYS, **here)) == words


def test_flags_count_in_any_order_and_only_where_they_change_programs() -> None:
    told = {"XLA_FLAGS": "--xla_dump_to=/tmp --b=2  --a=1", "HOME": "/", "LIBTPU_INIT_ARGS": "--c"}
    same = {
        "XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8 --b=2",
        "LIBTPU_INIT_ARGS": "--c",
    }
    assert (
        flags_of(told) == flags_of(same) == {"XLA_FLAGS": "--a=1 --b=2", "LIBTPU_INIT_ARGS": "--c"}
    )
