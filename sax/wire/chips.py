"""Maps Saxml's chip type and topology flags to their wire numbers.

The texts are derived from the enum's names, so a new chip needs only a line in the proto.
"""

from __future__ import annotations

from typing import cast

from sax.proto.admin_pb2 import ModelServer

UNKNOWN = "unknown"

# Casts: at run time a protobuf enum is a plain int.
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
    """Return the number of "tpuv5e", "h100", "cpu" ...; else CHIP_TYPE_UNKNOWN."""
    return _CHIPS.get(text.lower(), _CHIPS[UNKNOWN])


def decode_chip(number: int) -> str:
    return _CHIP_TEXTS.get(number, UNKNOWN)


def encode_topology(text: str) -> ModelServer.ChipTopology:
    """Return the number of "4x8", "1" ...; else CHIP_TOPOLOGY_UNKNOWN."""
    shape = text.lower().removesuffix("_untwisted").removesuffix("_twisted")
    return _TOPOLOGIES.get(shape, _TOPOLOGIES[UNKNOWN])


def decode_topology(number: int) -> str:
    return _TOPOLOGY_TEXTS.get(number, UNKNOWN)
