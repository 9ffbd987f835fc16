"""Chip types and topologies: Saxml's flag values and their numbers on the wire.

The texts are derived from the enum's own names, so a new chip needs a line in the proto only.
"""

from __future__ import annotations

from typing import cast

from sax.proto.admin_pb2 import ModelServer

UNKNOWN = "unknown"

# The casts: at run time an enum of the wire is a plain int.
_CHIPS = {
    name.removeprefix("CHIP_TYPE_").removeprefix("GPU_").replace("_", "").lower(): cast(
        ModelServer.ChipType, number
    )
    for name, number in ModelServer.ChipType.items()
}
_TOPOLOGIES = {
    name.removeprefix("CHIP_TOPOLOGY_").lower(): cast(ModelServer.ChipTopology, number)
    for name, number in ModelServer.ChipTopology.items()
}
_CHIP_TEXTS: dict[int, str] = {number: text for text, number in _CHIPS.items()}
_TOPOLOGY_TEXTS: dict[int, str] = {number: text for text, number in _TOPOLOGIES.items()}


def encode_chip(text: str) -> ModelServer.ChipType:
    """The number of "tpuv5e", "h100", "cpu" ...; any other text becomes CHIP_TYPE_UNKNOWN."""
    return _CHIPS.get(text.lower(), _CHIPS[UNKNOWN])


def decode_chip(number: int) -> str:
    """The text of a chip type; "unknown" for a number of a later version."""
    return _CHIP_TEXTS.get(number, UNKNOWN)


def encode_topology(text: str) -> ModelServer.ChipTopology:
    """The number of "4x8", "1" ...; any other text becomes CHIP_TOPOLOGY_UNKNOWN."""
    shape = text.lower().removesuffix("_untwisted").removesuffix("_twisted")
    return _TOPOLOGIES.get(shape, _TOPOLOGIES[UNKNOWN])


def decode_topology(number: int) -> str:
    """The text of a topology; "unknown" for a number of a later version."""
    return _TOPOLOGY_TEXTS.get(number, UNKNOWN)
