"""Every op can be sent to another host."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from model_server.engine.media import EncodeBatch, EncodedPart
from model_server.engine.running.ops import (
    Awaited,
    Beginning,
    Choose,
    Connect,
    DropPages,
    Encode,
    ExportPages,
    FetchPages,
    ForgetAdapter,
    ForgetWeights,
    ImportPages,
    Op,
    Propose,
    ReadAdapter,
    ReadWeights,
    Sleep,
    WriteAdapter,
    WriteWeights,
)
from model_server.engine.types import SlotMask

OPS: list[Any] = [
    Choose((SlotMask(3, b"\1\0\0\0"),)),
    Encode(EncodeBatch(1, 4, (EncodedPart((0, 1), 1, b"\0" * 4, b"\1" * 4),))),
    Propose((Beginning(slot=1, start=5, token=7, count=2),)),
    ReadAdapter("key", "/path"),
    WriteAdapter("key", 1),
    ForgetAdapter("key"),
    ExportPages(2**62 - 1, (4, 9), ()),
    ImportPages(7, (4, 9), (1,), slot=3, token=17),
    FetchPages(7, 2, 1, ("a:1", "b:1"), 5.0),
    DropPages(7),
    Connect(("a:1", "b:1")),
    ReadWeights("key", "/path", True),
    WriteWeights("key"),
    ForgetWeights("key"),
    Sleep(),
]


def test_every_op_arrives_as_it_was_sent() -> None:
    assert {type(op) for op in OPS} == set(get_args(Op)) > set(get_args(Awaited))
    for op in OPS:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(op), type=Op) == op
