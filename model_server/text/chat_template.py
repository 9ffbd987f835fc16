"""Renders a chat with the Jinja template of a checkpoint.

Templates come with checkpoints, so they run sandboxed (no access to Python internals, immutable
inputs) and metered: every loop step, call and piece of output is counted, and a render over the
limit fails. Padding functions and huge repetitions, which would cost memory in one step, are
refused. User text cannot become a control token (see `control_tokens`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from model_server.text.control_tokens import ControlTokens
from sax.errors import CheckpointError, InvalidRequest
from sax.types import Message

_MAX_SOURCE = 1 << 20  # characters of a template
_MAX_WORK = 1 << 20  # loop steps of one render
_CALL = 16  # a call costs about as much time as this many loop steps
_MAX_TEXT = 1 << 24  # characters of one render, or of one string inside it
_PADDING_FILTERS = ("center", "format", "indent", "wordwrap", "xmlattr")
_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "translate", "zfill"})


class ChatTemplate:
    """A model's chat template. Rendering is thread-safe."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Collection[str] = (),
    ) -> None:
        """Raises CheckpointError if the template does not parse."""
        self.source = source
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._control_tokens = ControlTokens(special_tokens)
        self._template = _compiled(source)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the chat as text. Raises InvalidRequest if the template rejects the messages.

        Control tokens in user text come out marked, so that `encode_chat` of the same checkpoint's
        tokenizer treats them as text.
        """
        guard = self._control_tokens.guard
        chat = [{"role": guard(m.role), "content": guard(m.content)} for m in messages]
        token = _METER.set(_Meter())
        try:
            return self._joined(chat, add_generation_prompt)
        except InvalidRequest:
            raise
        except Exception as exc:  # a template can raise anything an expression can
            raise _refusal(f"fails on these messages: {exc or type(exc).__name__}") from exc
        finally:
            _METER.reset(token)

    def _joined(self, chat: list[dict[str, str]], add_generation_prompt: bool) -> str:
        pieces: list[str] = []
        for piece in self._template.generate(
            messages=chat,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self._fixed,
        ):
            _METER.get().write(len(piece))
            pieces.append(piece)
        return "".join(pieces)


class _Meter:
    """Work and text that one render has used so far."""

    def __init__(self) -> None:
        self._work = 0
        self._text = 0

    def work(self, steps: int) -> None:
        self._work += steps
        if self._work > _MAX_WORK:
            raise _refusal(f"takes more than {_MAX_WORK} steps; send a shorter chat")

    def write(self, characters: int) -> None:
        self._text += characters
        if self._text > _MAX_TEXT:
            raise _refusal(f"writes more than {_MAX_TEXT} characters; send a shorter chat")


_METER: ContextVar[_Meter] = ContextVar("chat template meter")


def _refusal(text: str) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template {text}", param="messages")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja sandbox that meters calls and repetitions."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _METER.get().work(_CALL)
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> None:
        if super().wrap_str_format(value) is not None:
            raise _refusal("formats with str.format, which is not supported; join strings instead")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        padding = isinstance(obj, str) and attr in _PADDING_METHODS
        return not padding and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise _refusal("formats with %, which is not supported; join strings instead")
        if operator == "**" and abs(right) * abs(left) > 1 << 10:
            raise _refusal("takes a power that is too large")
        if operator == "*" and _repetition(left, right) > _MAX_TEXT:
            raise _refusal("repeats a text or list too often")
        return _bounded(super().call_binop(context, operator, left, right))


def _repetition(left: Any, right: Any) -> int:
    """Length of a repeated sequence; for two numbers, the bits of their product."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    sequence, count = (left, right) if isinstance(right, int) else (right, left)
    return len(sequence) * max(count, 0) if isinstance(sequence, Sized) else 0


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > _MAX_TEXT:
        raise _refusal(f"builds a string of more than {_MAX_TEXT} characters; send a shorter chat")
    return value


def _steps(iterable: Iterable[Any]) -> list[Any]:
    """Materialise what a loop iterates over, and meter it before the first step."""
    items = list(iterable)
    _METER.get().work(len(items) + 1)
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


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    for name in _PADDING_FILTERS:
        del environment.filters[name]
    environment.filters |= {"tojson": _to_json, "_steps": _steps, "_bounded": _bounded}
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    del environment.globals["lipsum"]
    return environment


def _compiled(source: str) -> jinja2.Template:
    if len(source) > _MAX_SOURCE:
        raise CheckpointError(
            f"the chat template has {len(source)} characters; at most {_MAX_SOURCE} are read"
        )
    environment = _environment()
    try:
        tree = _Metering().visit(environment.parse(source))
        code = environment.compile(tree)
        return jinja2.Template.from_code(environment, code, environment.make_globals(None))  # pyright: ignore[reportArgumentType]
    except jinja2.TemplateSyntaxError as exc:
        raise CheckpointError(f"the chat template is wrong at line {exc.lineno}: {exc}") from exc
    except Exception as exc:  # nested too deeply for the parser or for Python's compiler
        raise CheckpointError(f"the chat template does not compile: {exc}") from exc


def _raise(text: str) -> NoReturn:
    raise _refusal(f"refuses these messages: {text}")


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
    if (indent or 0) > 16:
        raise _refusal(f"indents JSON by {indent}; at most 16 is supported")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
