"""Chips on the wire are Saxml's flag values, and what a server sends of its activity that makes no
sense becomes nothing.
"""

from __future__ import annotations

import math

from sax.activity import IDLE, Activity
from sax.proto import common_pb2
from sax.proto.admin_pb2 import ModelServer
from sax.wire.servers import (
    decode_activity,
    decode_chip,
    decode_topology,
    encode_activity,
    encode_chip,
    encode_topology,
)
from tests.each_case import each_case


def test_an_idle_model_takes_no_bytes() -> None:
    assert encode_activity(IDLE) is None
    assert decode_activity(common_pb2.Activity()) == IDLE


def test_every_field_has_its_place_in_the_message() -> None:
    message = common_pb2.Activity.DESCRIPTOR
    assert [field.name for field in message.fields] == list(Activity.__slots__)


def test_figures_that_make_no_sense_are_none() -> None:
    hostile = common_pb2.Activity(
        slots=-1, pages=5, first_token_s=math.inf, token_interval_s=math.nan
    )
    assert decode_activity(hostile) == Activity(pages=5)


@each_case(
    "text, number",
    [
        ("cpu", ModelServer.CHIP_TYPE_CPU),
        ("tpuv4i", ModelServer.CHIP_TYPE_TPU_V4I),
        ("tpuv5e", ModelServer.CHIP_TYPE_TPU_V5E),
        ("TPUv6e", ModelServer.CHIP_TYPE_TPU_V6E),
        ("h100", ModelServer.CHIP_TYPE_GPU_H100),
        ("b300", ModelServer.CHIP_TYPE_UNKNOWN),
        ("", ModelServer.CHIP_TYPE_UNKNOWN),
    ],
)
def test_a_chip_has_its_number(text: str, number: int) -> None:
    assert encode_chip(text) == number


@each_case(
    "text, number",
    [
        ("1", ModelServer.CHIP_TOPOLOGY_1),
        ("4x8", ModelServer.CHIP_TOPOLOGY_4X8),
        ("4X8", ModelServer.CHIP_TOPOLOGY_4X8),
        ("4x4x8_twisted", ModelServer.CHIP_TOPOLOGY_4X4X8),
        ("4x4x8_untwisted", ModelServer.CHIP_TOPOLOGY_4X4X8),
        ("3x3", ModelServer.CHIP_TOPOLOGY_UNKNOWN),
    ],
)
def test_a_topology_has_its_number(text: str, number: int) -> None:
    assert encode_topology(text) == number


def test_every_number_reads_back() -> None:
    for number in ModelServer.ChipType.values():
        assert encode_chip(decode_chip(number)) == number
    for number in ModelServer.ChipTopology.values():
        assert encode_topology(decode_topology(number)) == number


def test_a_number_of_a_later_version_is_unknown() -> None:
    assert decode_chip(999) == "unknown"
    assert decode_topology(999) == "unknown"
