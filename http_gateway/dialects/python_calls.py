"""Calls as Python writes them, name(key=value), converted to JSON."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

MOST_CALL = 32 << 10  # characters of one call: some 30 ms
_DEEPEST = 32  # brackets in one another
_OUTSIDE = re.compile(r"[\"'()\[\]{}]")
_INSIDE = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_WORDS = {"true": True, "false": False, "null": None}
_MINUSES = re.compile(r"[-+~]\s*[-+~]|\bnot\b|\bif\b|\blambda\b")


class PythonScan:
    """Finds where the brackets of a call close in a text that comes in pieces."""

    def __init__(self) -> None:
        self.complete = False
        self.deepest = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def end(self, text: str, at: int) -> int:
        """Return the place up to which the text belongs to the call."""
        while at < len(text) and not self.complete:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            pattern = _INSIDE[self._quote] if self._quote else _OUTSIDE
            found = pattern.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._step(found[0])
        return at

    def _step(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character in "\"'":
            self._quote = "" if self._quote else character
        elif character in "([{":
            self._depth += 1
            self.deepest = max(self.deepest, self._depth)
        else:
            self._depth -= 1
            self.complete = self._depth <= 0


def arguments_of(source: str, deepest: int) -> str | None:
    """Return the arguments of a call, (key=value, ...), as JSON; None: they are no plain values.

    deepest: brackets in one another.
    """
    if len(source) > MOST_CALL or deepest > _DEEPEST or _MINUSES.search(source):
        return None
    try:
        call = ast.parse(f"f{source}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _value(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return None if None in values else json.dumps(values, ensure_ascii=False)


def _value(node: ast.expr) -> Any:
    """Return a plain value. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_key(key): _value(value) for key, value in pairs}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case _:
            raise ValueError("no plain value")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("no name of a field")
