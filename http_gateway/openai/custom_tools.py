"""Custom tools of OpenAI's API: tools whose input is a text, and no JSON.

Models know functions only. A custom tool is a function with one text, `input`, and strict: the
grammar of its call makes nothing else, and a format of the text is a pattern in its schema.

A Lark grammar whose rules do not go in circles is a regex. Others, and what only Lark itself does
(%ignore, templates), are refused. No package does this: Lark's own parses texts.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from http_gateway.openai.tools import object_at, read_description, read_name, refuse_others
from sax.chat import Tool, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|//[^\n]*)
    |(?P<import>%import[ ]+common\.(?P<common>\w+)(?:[ ]*->[ ]*(?P<alias>\w+))?)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
    |(?P<rule>[!?]?[_A-Za-z]\w*(?:\.-?\d+)?[ \t]*:)
    |(?P<name>[_A-Za-z]\w*)
    |(?P<number>\d+)
    |(?P<mark>\.\.|->|[~|()\[\]?*+])""",
    re.VERBOSE,
)
_COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(?:\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LETTER": "[A-Za-z]",
    "UCASE_LETTER": "[A-Z]",
    "LCASE_LETTER": "[a-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}
_MOST = 64 << 10  # characters of a regex on the way; the field's own bound is checked by the caller
_DEEPEST = 64  # brackets and rules inside each other
_ESCAPE, _ESCAPES = re.compile(r"\\(.)"), frozenset('\\"Uuxnftr')
_META = frozenset(r"\.+*?()|[]{}^$")


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


class NotRegular(ValueError):
    """A grammar that is no regex, with the reason in words."""


class _Token(NamedTuple):
    kind: str
    text: str


def lark_pattern(definition: str) -> str:
    """Return the regex of the rule `start`. Raises NotRegular."""
    return _LarkRules(definition).pattern_of("start", (), 0)


class _LarkRules:
    def __init__(self, definition: str) -> None:
        self._rules: dict[str, list[_Token]] = {}
        self._common: dict[str, str] = {}
        self._done: dict[str, str] = {}
        rule: list[_Token] | None = None
        for found in _tokens(definition):
            if found["common"]:
                self._import(found["common"], found["alias"])
            elif found["rule"]:
                name = found["rule"].rstrip(": \t").lstrip("!?").partition(".")[0]
                rule = self._begin(name)
            elif rule is None:
                raise NotRegular(f"{found[0]!r} is before the first rule")
            else:
                rule.append(_Token(str(found.lastgroup), found[0]))

    def _begin(self, name: str) -> list[_Token]:
        if name in self._rules:
            raise NotRegular(f"the rule {name} is there twice")
        return self._rules.setdefault(name, [])

    def _import(self, name: str, alias: str | None) -> None:
        if name not in _COMMON:
            raise NotRegular(f"common.{name} is not known here: write it as a regex")
        self._common[alias or name] = _COMMON[name]

    def pattern_of(self, name: str, above: tuple[str, ...], depth: int) -> str:
        """above, depth: the rules, and the brackets and rules, that this one stands in."""
        if name in above or depth > _DEEPEST:
            raise NotRegular(f"the rule {name} goes in a circle, or too deep")
        if name in self._common:
            return self._common[name]
        if name not in self._rules:
            raise NotRegular(f"there is no rule {name}")
        if name not in self._done:
            reader = _Expansion(self, self._rules[name], (*above, name))
            self._done[name] = reader.whole(depth + 1)
        return self._done[name]


def _tokens(definition: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(definition):
        found = _TOKEN.match(definition, at)
        if found is None:
            raise NotRegular(f"{definition[at : at + 20]!r} is not read here")
        at = found.end()
        if found.lastgroup != "space":
            yield found


class _Expansion:
    """Reads what a rule stands for."""

    def __init__(self, grammar: _LarkRules, tokens: list[_Token], names: tuple[str, ...]) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._names = names
        self._at = 0

    def whole(self, depth: int) -> str:
        pattern = self._choice(depth)
        if self._at < len(self._tokens):
            raise NotRegular(f"{self._tokens[self._at].text!r} stands where nothing can")
        return pattern

    def _mark(self, *marks: str) -> str:
        """Return the next mark, and go on behind it, if it is one of these."""
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == "mark" and token.text in marks:
                self._at += 1
                return token.text
        return ""

    def _choice(self, depth: int) -> str:
        if depth > _DEEPEST:
            raise NotRegular("its brackets are too deep")
        ways = [self._sequence(depth)]
        length = len(ways[0])
        while self._mark("|"):
            ways.append(self._sequence(depth))
            length = _bounded(length + len(ways[-1]))
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        length = 0
        while self._at < len(self._tokens):
            if self._mark("->"):  # a name for a tree, which nobody builds
                self._at += 1
                break
            if self._tokens[self._at].text in ("|", ")", "]"):
                break
            parts.append(self._repeated(depth))
            length = _bounded(length + len(parts[-1]))
        return "".join(parts)

    def _repeated(self, depth: int) -> str:
        pattern = self._atom(depth)
        if repeat := self._mark("?", "*", "+"):
            return f"(?:{pattern}){repeat}"
        if self._mark("~"):
            least = most = self._number()
            if self._mark(".."):
                most = self._number()
            if most < least:
                raise NotRegular(f"~{least}..{most} asks for fewer than it must")
            return f"(?:{pattern}){{{least},{most}}}"
        return pattern

    def _number(self) -> int:
        token = self._next()
        if token.kind != "number":
            raise NotRegular(f"{token.text!r} stands for a number")
        return int(token.text[:9])

    def _next(self) -> _Token:
        if self._at >= len(self._tokens):
            raise NotRegular("a rule ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _atom(self, depth: int) -> str:
        kind, text = self._next()
        match kind:
            case "mark" if text in ("(", "["):
                inner = self._choice(depth + 1)
                if not self._mark(")" if text == "(" else "]"):
                    raise NotRegular("a bracket is open at the end of a rule")
                return f"(?:{inner})" + ("?" if text == "[" else "")
            case "string":
                return self._string(text)
            case "regex":
                return _regex(text)
            case "name":
                return f"(?:{self._grammar.pattern_of(text, self._names, depth)})"
            case _:
                raise NotRegular(f"{text!r} stands where nothing can")

    def _string(self, text: str) -> str:
        if self._mark(".."):
            end = self._next()
            if end.kind != "string":
                raise NotRegular(f"{end.text!r} stands for the end of the range of {text}")
            first, last = _literal(text), _literal(end.text)
            if len(first) != 1 or len(last) != 1 or last < first:
                raise NotRegular(f"the range of {text} is none of single characters in order")
            return f"[{_in_class(first)}-{_in_class(last)}]"
        plain = _escaped(_literal(text.removesuffix("i")))
        return f"(?i:{plain})" if text.endswith("i") else plain


def _bounded(length: int) -> int:
    if length > _MOST:
        raise NotRegular("its regex is too long")
    return length


def _regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    if not set(flags) <= set("is"):
        raise NotRegular(f"the flags {flags} of a regex are not read here")
    plain = body.replace("\\/", "/")
    return f"(?{flags}:{plain})" if flags else f"(?:{plain})"


def _literal(text: str) -> str:
    """Return what a text between quotes says. A backslash before any other letter is one."""
    source = _ESCAPE.sub(lambda found: found[0] if found[1] in _ESCAPES else "\\" + found[0], text)
    try:
        value = str(ast.literal_eval(source))
        value.encode()
    except (ValueError, SyntaxError) as exc:
        raise NotRegular(f"{text} is no text: {exc}") from exc
    return value


def _escaped(text: str) -> str:
    plain = "".join(f"\\{letter}" if letter in _META else letter for letter in text)
    return plain.replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in r"\]^-[" else letter
