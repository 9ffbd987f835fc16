"""Devices of an island, as --instance_type gives them: `cpu:2`, `tpuv5e:4x8`."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from sax.errors import InvalidRequest

_SHAPE = re.compile(r"(cpu|gpu|tpu)([a-z0-9]*):(\d+(?:x\d+)*)")
# Chips with two cores that jax shows as two devices.
_TWO_DEVICES = ("v2", "v3")


class InstanceType(NamedTuple):
    """The devices of one island."""

    platform: str  # "cpu", "tpu", "gpu"
    kind: str  # "v5e"; "" for CPUs
    devices: int


def parse_instance_type(text: str) -> InstanceType:
    """Raises InvalidRequest."""
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidRequest(
            f"--instance_type={text!r}: say the kind of devices and how many one island has, such "
            "as cpu:2, gpu:8 or tpuv5e:4x8",
            param="instance_type",
        )
    count = math.prod(map(int, found[3].split("x")))
    if not count:
        raise InvalidRequest(f"--instance_type={text!r} has no devices", param="instance_type")
    return InstanceType(found[1], found[2], count * (2 if found[2] in _TWO_DEVICES else 1))
