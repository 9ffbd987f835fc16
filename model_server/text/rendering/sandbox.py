"""Compiles chat templates so that they run sandboxed and metered.

Renders as transformers does: the same Jinja settings, filters and functions. A template has no
access to Python internals, its inputs are immutable, and every loop step, call and piece of output
counts towards limits. Single operations can still cost any time and memory, so this code runs only
in a process with limits of its own (see `worker`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from model_server.text.rendering.past_calls import CallArguments

MAX_SOURCE = 1 << 20  # characters of a template
_MAX_WORK = 1 << 20  # loop steps of one render
_CALL = 16  # a call costs about as much time as this many loop steps
_MAX_TEXT = 1 << 24  # characters of one render, or of one string inside it


class BrokenTemplate(Exception):
    """The template does not compile."""


class RefusedChat(Exception):
    """The template fails on these messages, as it may."""


class RunawayTemplate(Exception):
    """The template exceeds a limit."""


class CompiledTemplate:
    """A compiled template. Not thread-safe."""

    def __init__(self, source: str) -> None:
        """Raises BrokenTemplate."""
        if len(source) > MAX_SOURCE:
            raise BrokenTemplate(f"has {len(source)} characters; at most {MAX_SOURCE} are read")
        self._environment = _Environment()
        self._template = _compiled(self._environment, source)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises RefusedChat or RunawayTemplate."""
        meter = self._environment.meter
        meter.restart()
        pieces: list[str] = []
        try:
            for piece in self._template.generate(variables):
                meter.write(len(piece))
                pieces.append(piece)
        except (RefusedChat, RunawayTemplate, MemoryError):
            raise
        except Exception as exc:  # a template can raise anything an expression can
            raise RefusedChat(f"fails on these messages: {exc or type(exc).__name__}") from exc
        return "".join(pieces)


class _Meter:
    """Work and text that one render has used so far."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._work = self._text = 0

    def work(self, steps: int) -> None:
        self._work += steps
        if self._work > _MAX_WORK:
            raise RunawayTemplate(f"takes more than {_MAX_WORK} steps; send a shorter chat")

    def write(self, characters: int) -> None:
        self._text += characters
        if self._text > _MAX_TEXT:
            raise RunawayTemplate(f"writes more than {_MAX_TEXT} characters; send a shorter chat")


class GivenList(list[Any]):
    """A list that a template may read and not change."""


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja sandbox that meters calls and repetitions."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        self.meter = _Meter()
        self.filters |= {"tojson": _to_json, "_steps": _steps, "_bounded": _bounded}
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}
        del self.globals["lipsum"]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Kimi's and LFM2's templates build lists so.
        if type(obj) is list and attr == "append":  # pyright: ignore[reportUnknownArgumentType]
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.meter.work(_CALL)
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) * abs(left) > 1 << 10:
            raise RunawayTemplate("takes a power that is too large")
        if operator == "*" and _repetition(left, right) > _MAX_TEXT:
            raise RunawayTemplate("repeats a text or list too often")
        return _bounded(super().call_binop(context, operator, left, right))


def _repetition(left: Any, right: Any) -> int:
    """Length of a repeated sequence; for two numbers, the bits of their product."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    sequence, count = (left, right) if isinstance(right, int) else (right, left)
    return len(sequence) * max(count, 0) if isinstance(sequence, Sized) else 0


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > _MAX_TEXT:
        raise RunawayTemplate(
            f"builds a string of more than {_MAX_TEXT} characters; send a shorter chat"
        )
    return value


@pass_context  # so that Jinja never computes it ahead for a constant, which would be unmetered
def _steps(context: Context, iterable: Iterable[Any]) -> list[Any]:
    """Materialise what a loop iterates over, and meter it before the first step."""
    items = list(iterable)
    cast(_Environment, context.environment).meter.work(len(items) + 1)
    return items


class _Metering(NodeTransformer):
    """Rewrites a parsed template so that its loops and concatenations are metered."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), "_steps")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, "_bounded")

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, "_bounded")


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """Renders the body of `{% generation %}`, which only marks the text to train on."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _compiled(environment: _Environment, source: str) -> jinja2.Template:
    try:
        tree = _Metering().visit(environment.parse(source))
        code = environment.compile(tree)
        return jinja2.Template.from_code(environment, code, environment.make_globals(None))  # pyright: ignore[reportArgumentType]
    except jinja2.TemplateSyntaxError as exc:
        raise BrokenTemplate(f"is wrong at line {exc.lineno}: {exc}") from exc
    except MemoryError:
        raise
    except Exception as exc:  # nested too deeply for the parser or for Python's compiler
        raise BrokenTemplate(f"does not compile: {exc}") from exc


def _raise(text: str) -> NoReturn:
    raise RefusedChat(f"refuses these messages: {text}")


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: no HTML escapes, non-ASCII text unescaped."""
    if isinstance(value, CallArguments) and not (ensure_ascii or indent or separators or sort_keys):
        return value.source
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
