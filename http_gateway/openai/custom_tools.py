"""Custom tools of OpenAI's API: tools whose input is a text, and no JSON.

Models know functions only. A custom tool is a function with one text, `input`, and strict: the
grammar of its call makes nothing else, and a format of the text is a pattern in its schema.
"""

from __future__ import annotations

import json
import re
from typing import Any

from http_gateway.openai.lark_pattern import NotRegular, lark_pattern
from http_gateway.openai.tools import (
    object_at,
    read_description,
    read_name,
    refuse_others,
)
from sax.chat import Tool, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted


def read_custom(parts: dict[str, Any], at: str, *, nested: bool) -> Tool:
    """Read a custom tool. nested: its grammar is in a field of its own, as chats have it.

    Raises InvalidRequest or UnsupportedParameter naming the part.
    """
    name = read_name(parts.pop("name", None), at)
    description = read_description(parts.pop("description", None), at)
    text: dict[str, Any] = {"type": "string"}
    pattern = _pattern(parts.pop("format", None), f"{at}.format", nested=nested)
    if pattern is not None:
        text["pattern"] = pattern
    refuse_others(parts, at)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return Tool(name, description, json.dumps(schema, ensure_ascii=False), strict=True)


def _pattern(value: object, at: str, *, nested: bool) -> str | None:
    """Return the pattern that a text must match; None: any text."""
    parts = object_at({"type": "text"} if value is None else value, at)
    kind = parts.pop("type", None)
    if kind == "text":
        refuse_others(parts, at)
        return None
    if kind != "grammar":
        raise UnsupportedParameter(
            f"{at}.type is {quoted(kind)}: send text or grammar", param=f"{at}.type"
        )
    if nested:
        own = object_at(parts.pop("grammar", None), f"{at}.grammar")
        refuse_others(parts, at)
        parts, at = own, f"{at}.grammar"
    syntax, definition = parts.pop("syntax", None), parts.pop("definition", None)
    refuse_others(parts, at)
    if syntax not in ("regex", "lark"):
        raise UnsupportedParameter(
            f"{at}.syntax is {quoted(syntax)}: send regex or lark", param=f"{at}.syntax"
        )
    if not isinstance(definition, str):
        raise InvalidRequest(f"{at}.definition: send a text", param=f"{at}.definition")
    field(RequestRoute.STREAM, "grammar").check_text(definition, f"{at}.definition")
    pattern = definition if syntax == "regex" else _of_lark(definition, at)
    field(RequestRoute.STREAM, "regex").check_text(pattern, f"{at}.definition")
    return f"^(?:{pattern})$"


def _of_lark(definition: str, at: str) -> str:
    try:
        return lark_pattern(definition)
    except NotRegular as exc:
        raise UnsupportedParameter(
            f"{at}.definition is no grammar that the input of a call can be held to: {exc}; send "
            "rules without circles, a regex, or the format text",
            param=f"{at}.definition",
        ) from exc


def custom_call(id: str, name: str, text: object, at: str) -> ToolCall:
    """Return an earlier call of a custom tool as that of its function. Raises InvalidRequest."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}: send a text", param=at)
    field(RequestRoute.CHAT, "messages.tool_calls.arguments").check_text(text, at)
    return ToolCall(id, name, json.dumps({"input": text}, ensure_ascii=False))


_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Whole characters and escapes; half a pair of surrogates waits for the other.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


class CustomInput:
    """Reads the text out of the arguments of one call, piece by piece."""

    def __init__(self) -> None:
        self._arguments = ""
        self._at: int | None = None  # where the text goes on; None: it has not begun

    def push(self, piece: str) -> str:
        """Return what the next piece of the arguments adds to the text."""
        self._arguments += piece
        if self._at is None:
            begun = _BEGIN.match(self._arguments)
            if begun is None:
                return ""
            self._arguments, self._at = self._arguments[begun.end() :], 0
        whole = _WHOLE.match(self._arguments)
        assert whole is not None, "no text is a whole one, too"
        text, self._arguments = whole[0], self._arguments[whole.end() :]
        return json.loads(f'"{text}"', strict=False)

    def finish(self) -> str:
        """Return the rest: arguments of another form come as they are."""
        return self._arguments if self._at is None else ""
