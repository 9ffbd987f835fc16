"""Lines of a chat that begin with a slash: they change the conversation and are no message."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sax.cli.conversation import Conversation
from sax.command import say
from sax.errors import InvalidRequest
from sax.fields.field import Kind
from sax.fields.sampling import SAMPLING, SamplingRow
from sax.format import quoted

HELP = '''\
  /help              this list
  /clear             forget the conversation
  /system TEXT       set the system prompt; without TEXT, remove it
  /set NAME VALUE    set a sampling field, e.g. /set temperature 0.5; alone, show them
  /bye               leave (so do Ctrl-D and, twice, Ctrl-C)
  """                begin a message of many lines; """ ends it
  //TEXT             a message that begins with a slash
Ctrl-C stops an answer.'''
_CONVERTED: dict[Kind, Any] = {Kind.INTEGER: int, Kind.NUMBER: float, Kind.TEXT: str}


def goes_on(line: str, conversation: Conversation) -> bool:
    """Carry out a line; return False if it ends the conversation."""
    name, _, rest = line.strip().partition(" ")
    match name:
        case "/bye":
            return False
        case "/help":
            say(HELP)
        case "/clear":
            conversation.turns.clear()
        case "/system":
            conversation.system = rest.strip() or None
        case "/set":
            _set(rest, conversation)
        case _:
            say(f"{quoted(name)} is not known; /help lists what is")
    return True


def _set(rest: str, conversation: Conversation) -> None:
    words = rest.split(maxsplit=1)
    if len(words) < 2:
        for name in _settable():
            say(f"  {name} = {getattr(conversation.sampling, name)}")
        return
    name, value = words[0].replace("-", "_"), words[1]
    try:
        converted = _value(name, value)
    except InvalidRequest as error:
        say(error.text)
        return
    conversation.sampling = replace(conversation.sampling, **{name: converted})


def _value(name: str, text: str) -> object:
    """Return the value of a field. Raises InvalidRequest."""
    if name not in _settable():
        raise InvalidRequest(
            f"{quoted(name)} cannot be set here; there are {', '.join(_settable())}"
        )
    row = SAMPLING[name]
    try:
        value = _CONVERTED[row.kind](text)
    except ValueError:
        raise InvalidRequest(f"{name} takes a number, not {quoted(text)}") from None
    if isinstance(value, str):
        return value
    if not _in_range(row, value):
        raise InvalidRequest(f"{name} cannot be {text}: {row.help}")
    return value


def _in_range(row: SamplingRow, value: float) -> bool:
    least = -math.inf if row.least is None else row.least
    most = math.inf if row.most is None else row.most
    return least <= value <= most and (row.above is None or value > row.above)


def _settable() -> list[str]:
    return [name for name, row in SAMPLING.items() if row.cli and row.kind in _CONVERTED]
