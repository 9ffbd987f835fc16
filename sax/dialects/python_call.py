"""Reads arguments as Python writes them: name(key=value, ...)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress

from sax.dialects.call_object import whole_characters
from sax.dialects.text_reader import TextReader

MOST_CALL = 32 << 10  # characters of one call: some 30 ms
_DEEPEST = 32  # brackets in one another
_OUTSIDE = re.compile(r"[\"'()\[\]{},]")
_INSIDE = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_WORDS = {"true": True, "false": False, "null": None}
# What Python's parser goes into deeper with each one, in a row; texts may hold them.
_TEXT = r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'"
_DEEPER = re.compile(rf"(?P<text>{_TEXT})|[-+~]\s*[-+~]|\b(?:not|if|lambda)\b", re.DOTALL)
_PART = re.compile(rf"{_TEXT}|(?P<opens>[(\[{{])|(?P<closes>[)\]}}])|(?P<comma>,)", re.DOTALL)
_BLANK = re.compile(r"\s*")
_KEY = re.compile(r"((?:[^\s=,()\[\]{}\"'][^=,()\[\]{}\"']*)?[\w-])\s*=")
_UNUSUAL = re.compile(r"[=,()\[\]{}\"']|[^\w-]\Z")  # in keys: they are read if they are known
_NO_ESCAPE = re.compile(r"\\(?![\\'\"abfnrtvxuUN0-7\n])")  # of Python, which warns of it
_LINE_END = re.compile(r"(?<!\\)[\n\r]")  # which ends no text of a call
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?\Z")  # of JSON


class PythonScan:
    """Finds where the brackets of a call close in a text that comes in pieces."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """keys: those that may have brackets, quotes or commas in them, the longest first."""
        self._keys = [f"{key}=" for key in keys]
        self._at_key = False
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
            if self._at_key:
                at, waits = self._behind_key(text, at)
                if waits:
                    return at
            pattern = _INSIDE[self._quote] if self._quote else _OUTSIDE
            found = pattern.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._step(found[0])
        return at

    def _behind_key(self, text: str, at: int) -> tuple[int, bool]:
        """Return the place behind the known key that stands here, or here; True: more text tells
        which."""
        at = _behind_blank(text, at)
        for key in self._keys:
            if text.startswith(key, at):
                at += len(key)
                break
            if len(text) - at < len(key) and key.startswith(text[at:]):
                return at, True
        self._at_key = False
        return at, False

    def _step(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == ",":
            self._at_key = self._depth == 1 and bool(self._keys)
        elif character in "\"'":
            self._quote = "" if self._quote else character
        elif character in "([{":
            self._depth += 1
            self._at_key = self._depth == 1 and bool(self._keys)
            self.deepest = max(self.deepest, self._depth)
        else:
            self._depth -= 1
            self.complete = self._depth <= 0


def _behind_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def arguments_of(source: str, deepest: int, keys: Sequence[str] = ()) -> str | None:
    """Return the arguments of a call, (key=value, ...), as JSON; None: they are no plain values.

    deepest: brackets in one another. keys: as of a PythonScan.
    """
    pairs = _pairs_of(source, deepest, keys)
    return None if pairs is None else _object(pairs)


def _pairs_of(source: str, deepest: int, known: Sequence[str]) -> dict[str | None, str] | None:
    """Return the values of the keys as JSON; None: they are no plain values."""
    if len(source) > MOST_CALL or deepest > _DEEPEST:
        return None
    named, keys = _named(source, known)
    if any(found["text"] is None for found in _DEEPER.finditer(named)):
        return None
    whole = "f" + _DEEPER.sub(lambda found: _python(found[0]), named)
    try:
        call = ast.parse(whole, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        values = _Values(whole)
        pairs = {keys.get(each.arg or ""): values.json(each.value) for each in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return None if None in pairs else pairs


def _named(source: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the source with a name of Python's for each key, and the keys by these names: a key
    may be a word of Python's, or have a dash."""
    made, keys = [""], dict[str, str]()
    depth = done = at = 0
    while found := _PART.search(source, at):
        at = found.end()
        depth += found.lastgroup == "opens"
        depth -= found.lastgroup == "closes"
        begins = found.lastgroup == "comma" or (depth == 1 and found.lastgroup == "opens")
        if begins and depth == 1 and (key := _key(source, at, known)):
            name = f"k{len(keys)}"
            keys[name] = key
            start = source.index(key, at)
            made += (source[done:start], name)
            done = at = start + len(key)
    return "".join((*made, source[done:])), keys


def _key(source: str, at: int, known: Sequence[str]) -> str:
    """Return the key that stands behind white space here; "": none does."""
    start = _behind_blank(source, at)
    found = _KEY.match(source, start)
    plain = found[1] if found else ""
    return next((key for key in known if source.startswith(f"{key}=", start)), plain)


def _python(text: str) -> str:
    """Return a quoted text as Python reads it. One that JSON has, too, means what it means there: a
    grammar that forces a call writes it so."""
    if text.startswith('"'):
        with suppress(ValueError):
            return repr(json.loads(text, strict=False))
    return _LINE_END.sub(lambda found: repr(found[0])[1:-1], _NO_ESCAPE.sub(r"\\\\", text))


class _Values:
    """Values in a source of Python, as JSON. Numbers that JSON has stay as they are."""

    def __init__(self, source: str) -> None:
        # Where Python's parser ends a line: str.splitlines does so at other characters, too.
        self._lines = [line.encode() for line in re.split(r"\r\n|\r|\n", source)]

    def json(self, node: ast.expr) -> str:
        """Raises ValueError for what is no plain value."""
        match node:
            case ast.Constant(value=str()):
                return _dumps(self._text(node))
            case ast.Name(id=name) if name in _WORDS:
                return _dumps(_WORDS[name])
            case ast.Constant(value=bool() | None as value):
                return _dumps(value)
            case (
                ast.Constant(value=int() | float())
                | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()))
            ):
                return self._number(node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return "[" + ", ".join(map(self.json, parts)) + "]"
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return _object({self._text(key): self.json(value) for key, value in pairs})
            case _:
                raise ValueError("no plain value")

    @staticmethod
    def _text(node: ast.expr | None) -> str:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            raise ValueError("no text")
        return node.value

    def _number(self, node: ast.expr) -> str:
        source = self._source(node).replace(" ", "")
        if _NUMBER.match(source):
            return source
        return _dumps(ast.literal_eval(node))

    def _source(self, node: ast.expr) -> str:
        first, last = node.lineno - 1, (node.end_lineno or 1) - 1
        if first != last:
            return ""
        return self._lines[first][node.col_offset : node.end_col_offset].decode()


def _object(pairs: Mapping[str | None, str]) -> str:
    return "{" + ", ".join(f"{_dumps(name)}: {value}" for name, value in pairs.items()) + "}"


def _dumps(value: object) -> str:
    """Raises ValueError for what JSON does not have, like infinity."""
    return whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False))


def read_python(
    reader: TextReader, name: str, id: str, parameters: Collection[str]
) -> Generator[None, None, bool]:
    """Read the arguments behind the bracket that was just read, and write the call. False: they are
    no plain values, and nothing was read."""
    start = reader.at
    keys = sorted(filter(_UNUSUAL.search, parameters), key=len, reverse=True)
    scan, place = PythonScan(keys), start - 1
    while True:
        place = scan.end(reader.text, place)
        if scan.complete or reader.ended or place - start > MOST_CALL:
            break
        yield
    arguments = arguments_of(reader.text[start - 1 : place], scan.deepest, keys)
    if arguments is None or not scan.complete:
        return False
    reader.write_call(name, arguments, id)
    reader.at = place
    return True


def literal_of(source: str) -> str | None:
    """Return a plain value of Python as JSON; None: it is none."""
    scan, whole = PythonScan(), f"(v={source})"
    if scan.end(whole, 0) < len(whole):
        return None
    pairs = _pairs_of(whole, scan.deepest, ()) or {}
    return pairs["v"] if pairs.keys() == {"v"} else None
