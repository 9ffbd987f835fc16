"""gpt-oss: messages in channels. Analysis is reasoning, commentary to a function is a call, and the
rest is content."""

from __future__ import annotations

import re
from collections.abc import Generator

from http_gateway.dialects.text_reader import Reading, TextReader

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


def read_harmony(reader: TextReader) -> Reading:
    # The prompt ends with the start of a message, so that the text begins with its header.
    yield from reader.blank()
    known = yield from reader.literal(_CHANNEL, "to=", _START)
    begun = reader.text[: reader.at]
    reader.forget()
    if not known:
        reader.say(begun)
        begun = yield from reader.until((_CHANNEL, _START))
    while begun:
        header: list[str] = [begun]
        found = yield from reader.until((_MESSAGE,), header.append)
        if not found:
            reader.say("".join(header))
            return
        begun = yield from _body(reader, "".join(header))


def _body(reader: TextReader, header: str) -> Generator[None, None, str]:
    """Read a message, and return how the header of the next one begins."""
    recipient = _RECIPIENT.search(header)
    call = recipient is not None and recipient[1] in reader.tools
    if call and recipient is not None:
        reader.begin_call(recipient[1])
        write = reader.add_arguments
    else:
        write = reader.think if f"{_CHANNEL}analysis" in header else reader.say
    end = yield from reader.until(_ENDS, write)
    if call:
        reader.end_call()
    if end in (_START, _CHANNEL, ""):
        return end
    # A message that ended; the next one begins with its start, or the answer is over.
    return (yield from reader.until((_START, _CHANNEL)))
