"""DeepSeek V3 (function<sep>name, arguments in a fence) and V3.1 (name<sep>arguments)."""

from __future__ import annotations

import re
from collections.abc import Generator

from http_gateway.dialects.text_reader import Reading, TextReader


def _token(words: str) -> str:
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


CALLS, CALLS_END = _token("tool calls begin"), _token("tool calls end")
CALL, CALL_END, SEP = _token("tool call begin"), _token("tool call end"), _token("tool sep")
_NAME = re.compile(r"[\w.-]+")
_FENCE = "```json"
_LONGEST = 64


def read_deepseek(reader: TextReader) -> Reading:
    while (yield from reader.until((CALLS,))):
        made = False
        while True:
            yield from reader.blank()
            if not (yield from reader.literal(CALL)):
                break
            if not (yield from _call(reader)):
                break
            made = True
            reader.forget()
        if made and not reader.text[: reader.at].strip():
            yield from reader.literal(CALLS_END)
        else:
            reader.say(("" if made else CALLS) + reader.text[: reader.at])
        reader.forget()


def _call(reader: TextReader) -> Generator[None, None, bool]:
    name = yield from _name(reader)
    if name not in reader.tools:
        return False
    yield from reader.blank()
    fenced = yield from reader.literal(_FENCE)
    yield from reader.blank()
    if not (yield from reader.next_is("{")):
        return False
    reader.begin_call(name)
    yield from reader.arguments()
    reader.end_call()
    yield from reader.blank()
    if fenced:
        yield from reader.literal("```")
        yield from reader.blank()
    yield from reader.literal(CALL_END)
    return True


def _name(reader: TextReader) -> Generator[None, None, str]:
    """Read the name of a call; "" for none."""
    words: list[str] = []
    for _ in range(2):
        found = yield from reader.matched(_NAME, _LONGEST)
        if found is None:
            return ""
        words.append(found[0])
        reader.at = found.end()
        if not (yield from reader.literal(SEP)):
            return words[1] if words[0] == "function" and len(words) == 2 else ""
        if words[0] != "function":
            return words[0]
    return ""
