"""Options of `up`, `demo` and `run` for the gateway that they start, made from its own flags."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from sax.flags.gateway_flags import add_gateway_flags

# Flags that the plan of a cell sets itself, from other options.
PLANNED = ("port", "host", "admin", "files", "tokens", "saxml_generation")


def gateway_options() -> Iterator[inspect.Parameter]:
    """Yield an option for each flag; one that is not given is not passed on."""
    for panel, action in _flags():
        spelled = f"--{action.dest}".replace("_", "-")
        told = Annotated[
            _kind(action),
            typer.Option(
                spelled,
                metavar=str(action.metavar) if action.metavar else None,
                help=_help(action),
                show_default=False,
                rich_help_panel=panel,
            ),
        ]
        default = False if _is_switch(action) else None
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(action.dest, kind, default=default, annotation=told)


def starts_a_gateway(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options, and pass those that are given on as `gateway_flags`."""
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [each for name, each in own.items() if name != "gateway_flags"]
    parameters += gateway_options()

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        flags = taken_flags(given)
        return command(*args, gateway_flags=flags, **given)

    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def taken_flags(given: MutableMapping[str, Any]) -> tuple[str, ...]:
    """Take the gateway's options out of a command's, and return them as flags."""
    values = {action.dest: given.pop(action.dest) for _, action in _flags()}
    return tuple(_flag(name, value) for name, value in values.items() if value not in (None, False))


def value_of(flags: tuple[str, ...], name: str) -> str:
    """Return the value of a flag; "" if it is not there."""
    values: Mapping[str, str] = dict(flag.split("=", 1) for flag in flags if "=" in flag)
    return values.get(f"--{name}", "")


def _flag(name: str, value: Any) -> str:
    return f"--{name}" if value is True else f"--{name}={value}"


def _flags() -> Iterator[tuple[str, argparse.Action]]:
    """Yield the flags with the titles of their groups."""
    parser = argparse.ArgumentParser(add_help=False)
    add_gateway_flags(parser)
    for group in parser._action_groups:  # pyright: ignore[reportPrivateUsage]
        for action in group._group_actions:  # pyright: ignore[reportPrivateUsage]
            if action.dest not in PLANNED:
                yield f"Gateway: {group.title}", action


def _is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0


def _kind(action: argparse.Action) -> Any:
    if _is_switch(action):
        return bool
    if action.choices:
        kind: Any = StrEnum(action.dest, {each: each for each in action.choices})
    else:
        kind = action.type or str
    return kind | None


def _help(action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default}
    return f"{text[:1].upper()}{text[1:]}."
