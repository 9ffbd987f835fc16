"""Options of the command line for sampling fields, made from the table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sax.errors import InvalidRequest
from sax.fields.field import Kind
from sax.fields.sampling import SAMPLING, UNCHANGED, SamplingParams, SamplingRow

_OPTIONS = {name: row for name, row in SAMPLING.items() if row.cli}
_TYPES: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.FLAG: bool,
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.IDS: list[int],
    Kind.TEXTS: list[str],
    Kind.BIASES: list[str],
}
_REPEATED = (Kind.IDS, Kind.TEXTS, Kind.BIASES)


def takes_sampling(**defaults: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for every sampling field, and pass them on as `sampling`.

    `defaults`: where the command's default differs from the field's own.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for name, each in signature.parameters.items() if name != "sampling"]
        options = [_option(name, row, defaults) for name, row in _OPTIONS.items()]

        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            sampling = _sampling({name: given.pop(name) for name in _OPTIONS})
            return command(*args, sampling=sampling, **given)

        run.__signature__ = inspect.Signature([*own, *options])  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {each.name: each.annotation for each in (*own, *options)}
        return run

    return decorate


def _option(name: str, row: SamplingRow, defaults: dict[str, object]) -> inspect.Parameter:
    default = defaults.get(name, getattr(UNCHANGED, name))
    kind = _TYPES[row.kind]
    if row.kind in _REPEATED or default is None:
        kind, default = kind | None, default or None
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=_help(row), rich_help_panel="Sampling", **_range(row))
    told = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=told)


def _help(row: SamplingRow) -> str:
    form = "" if row.kind is not Kind.BIASES else " As ID=NUMBER."
    return f"{row.help}{form}{' Repeatable.' if row.kind in _REPEATED else ''}"


def _range(row: SamplingRow) -> dict[str, Any]:
    if row.kind not in (Kind.INTEGER, Kind.NUMBER):
        return {}
    least = row.above if row.least is None else row.least  # the server refuses `above` itself
    most = row.most
    convert = int if row.kind is Kind.INTEGER else float
    return {
        "min": None if least is None else convert(least),
        "max": None if most is None else convert(most),
    }


def _sampling(given: dict[str, Any]) -> SamplingParams:
    values = {name: _value(_OPTIONS[name].kind, each) for name, each in given.items()}
    return SamplingParams(**{name: each for name, each in values.items() if each is not None})


def _value(kind: Kind, given: Any) -> Any:
    if given is None or kind not in _REPEATED:
        return given
    return dict(map(_bias, given)) if kind is Kind.BIASES else tuple(given)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InvalidRequest(
            f"logit_bias is {text!r}: give a token id and a number, as in 50=-100",
            param="logit_bias",
        ) from None
