"""Llama 3: {"name": ..., "parameters": {...}}, at the start of an answer or after <|python_tag|>;
several are separated by ";"."""

from __future__ import annotations

from http_gateway.dialects.call_object import call_object
from http_gateway.dialects.text_reader import Reading, TextReader

_TAG = "<|python_tag|>"


def read_llama3(reader: TextReader) -> Reading:
    yield from reader.blank()
    tag = yield from reader.literal(_TAG)
    yield from _calls(reader, "")
    while tag := (yield from reader.until((_TAG,))):
        yield from reader.blank()
        yield from _calls(reader, tag)


def _calls(reader: TextReader, before: str) -> Reading:
    """Read calls; before: text to return with what is none."""
    while (yield from reader.next_is("{")):
        if not (yield from call_object(reader)):
            break
        before = ""
        reader.forget()
        yield from reader.blank()
        if before := (yield from reader.literal(";")):
            reader.forget()
            yield from reader.blank()
    reader.say(before + reader.text[: reader.at])
    reader.forget()
