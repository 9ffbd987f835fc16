"""Codec for a cell's versions and events, and for lines of logs."""

from __future__ import annotations

from collections.abc import Iterable

from sax.flags.last_lines import LogLine
from sax.proto import cell_pb2, control_pb2
from sax.types import Event, Version


def encode_version(version: Version) -> cell_pb2.Version:
    return cell_pb2.Version(
        uuid=bytes.fromhex(version.version),
        checkpoint_path=version.checkpoint,
        overrides=version.overrides,
        at_s=version.at_s,
        by=version.by,
        current=version.current,
    )


def decode_version(msg: cell_pb2.Version) -> Version:
    return Version(
        version=msg.uuid.hex(),
        checkpoint=msg.checkpoint_path,
        overrides=dict(msg.overrides),
        at_s=msg.at_s,
        by=msg.by,
        current=msg.current,
    )


def encode_event(event: Event) -> cell_pb2.Event:
    return cell_pb2.Event(
        sequence=event.sequence,
        at_s=event.at_s,
        kind=event.kind,
        model_id=event.model_id,
        by=event.by,
        uuid=bytes.fromhex(event.version),
        text=event.text,
    )


def decode_event(msg: cell_pb2.Event) -> Event:
    return Event(
        sequence=msg.sequence,
        at_s=msg.at_s,
        kind=msg.kind,
        model_id=msg.model_id,
        by=msg.by,
        version=msg.uuid.hex(),
        text=msg.text,
    )


def encode_log(lines: Iterable[LogLine]) -> control_pb2.LogResponse:
    return control_pb2.LogResponse(lines=[control_pb2.LogLine(**line) for line in lines])


def decode_log(msg: control_pb2.LogResponse) -> list[LogLine]:
    return [
        LogLine(at_s=line.at_s, level=line.level, logger=line.logger, text=line.text)
        for line in msg.lines
    ]
