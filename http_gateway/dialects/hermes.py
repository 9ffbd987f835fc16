"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from http_gateway.dialects.call_object import call_object
from http_gateway.dialects.text_reader import Reading, TextReader

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(reader: TextReader) -> Reading:
    while (yield from reader.until((_OPEN,))):
        yield from reader.blank()
        if not (yield from call_object(reader)):
            reader.say(_OPEN + reader.text[: reader.at])
            continue
        yield from reader.blank()
        yield from reader.literal(_CLOSE)
