"""Saxml's flag values for chips and topologies."""

from __future__ import annotations

from sax.proto.admin_pb2 import ModelServer
from sax.wire.chips import decode_chip, decode_topology, encode_chip, encode_topology
from tests.each_case import each_case


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
