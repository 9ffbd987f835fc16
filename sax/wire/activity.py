"""Converts a model's activity to and from its message."""

from __future__ import annotations

import math
from dataclasses import fields

from sax.activity import IDLE, Activity
from sax.proto import common_pb2

_NAMES = tuple(each.name for each in fields(Activity))


def encode_activity(activity: Activity) -> common_pb2.Activity | None:
    if activity == IDLE:
        return None
    return common_pb2.Activity(**{name: getattr(activity, name) for name in _NAMES})


def decode_activity(msg: common_pb2.Activity) -> Activity:
    # Negative numbers make no sense, nor do infinite ones, but a server may send anything.
    values = {name: getattr(msg, name) for name in _NAMES}
    good = {name: value for name, value in values.items() if value > 0 and math.isfinite(value)}
    return Activity(**good)
