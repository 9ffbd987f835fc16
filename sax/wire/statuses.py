"""Codec for servable status and progress."""

from __future__ import annotations

from typing import cast

from sax.proto import common_pb2
from sax.types import Progress, ServableStatus

# Cast: at run time a protobuf enum is a plain int.
_NUMBERS = {
    status: cast(common_pb2.ModelStatus, common_pb2.ModelStatus.Value(status.name))
    for status in ServableStatus
}
_STATUSES: dict[int, ServableStatus] = {number: status for status, number in _NUMBERS.items()}


def encode_state(status: ServableStatus) -> common_pb2.ModelStatus:
    return _NUMBERS[status]


def decode_state(number: int) -> ServableStatus:
    return _STATUSES.get(number, ServableStatus.NONE)


def encode_progress(progress: Progress | None) -> common_pb2.Progress | None:
    if progress is None:
        return None
    return common_pb2.Progress(
        phase=progress.phase, done=progress.done, total=progress.total, unit=progress.unit
    )


def decode_progress(msg: common_pb2.Progress) -> Progress:
    return Progress(phase=msg.phase, done=msg.done, total=msg.total, unit=msg.unit)
