"""Anthropic's context_management: old reasoning and old results of tools leave the prompt.

An edit of results is made once the prompt has as many tokens, or calls, as its trigger says. A
compaction, which would have the model write a summary first, is refused where its trigger is
reached; below it, it changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from http_gateway.openai.tools import object_at
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Message
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted

CLEARED = "[This result was cleared to save context.]"
MOST_EDITS = 8
MOST_NAMES = 512
TRIGGER_TOKENS = 100_000  # Anthropic's defaults, as are those that follow
COMPACT_TOKENS = 150_000
KEPT_CALLS = 3
KEPT_THOUGHTS = 1
_FIELD = "context_management"
Chat = tuple[Message, ...]


class AppliedEdit(msgspec.Struct, omit_defaults=True):
    """An edit that changed the prompt."""

    type: str
    cleared_input_tokens: int
    cleared_tool_uses: int = 0  # with clear_tool_uses
    cleared_thinking_turns: int = 0  # with clear_thinking


@dataclass(frozen=True, slots=True)
class ClearThinking:
    """Removes the reasoning of all turns but the last ones."""

    keep: int | None  # turns; None: all

    def cleared(self, chat: Chat) -> tuple[Chat, int]:
        """Return the chat, and the number of turns that lost their reasoning."""
        thought = [n for n, each in enumerate(chat) if each.reasoning]
        old = {*thought[: len(thought) - self.keep]} if self.keep is not None else set[int]()
        made = (replace(each, reasoning="") if n in old else each for n, each in enumerate(chat))
        return tuple(made), len(old)

    def applies(self, tokens: int, freed: int) -> bool:
        return True

    def applied(self, turns: int, freed: int) -> AppliedEdit:
        return AppliedEdit("clear_thinking_20251015", freed, cleared_thinking_turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearToolUses:
    """Replaces the results of all calls but the last ones by a line that says so."""

    trigger_tokens: int | None = TRIGGER_TOKENS  # None: `trigger_calls` decides
    trigger_calls: int = 0
    keep: int = KEPT_CALLS
    at_least: int = 0  # tokens; fewer are not worth a prompt that is not cached
    exclude: frozenset[str] = frozenset()
    inputs: frozenset[str] | bool = False  # of these tools, or of all, the arguments go, too

    def cleared(self, chat: Chat) -> tuple[Chat, int]:
        """Return the chat, and the number of calls that lost their results."""
        results = [n for n, each in enumerate(chat) if each.role == "tool"]
        if self.trigger_tokens is None and len(results) <= self.trigger_calls:
            return chat, 0
        old = {
            n
            for n in results[: max(0, len(results) - self.keep)]
            if chat[n].name not in self.exclude and chat[n].content != CLEARED
        }
        ids = {chat[n].tool_call_id for n in old if self._clears_input(chat[n].name)}
        made = (
            replace(each, content=CLEARED) if n in old else _without_inputs(each, ids)
            for n, each in enumerate(chat)
        )
        return tuple(made), len(old)

    def _clears_input(self, name: str) -> bool:
        return self.inputs if isinstance(self.inputs, bool) else name in self.inputs

    def applies(self, tokens: int, freed: int) -> bool:
        """tokens: of the prompt before the edit. freed: how many fewer it has after it."""
        return (self.trigger_tokens is None or tokens > self.trigger_tokens) and (
            freed >= self.at_least
        )

    def applied(self, calls: int, freed: int) -> AppliedEdit:
        return AppliedEdit("clear_tool_uses_20250919", freed, cleared_tool_uses=calls)


@dataclass(frozen=True, slots=True)
class Compact:
    """A summary that the model would write of a prompt with more tokens than these."""

    at: str
    trigger_tokens: int

    def check(self, tokens: int) -> None:
        """Raise UnsupportedParameter where Anthropic would compact."""
        if tokens > self.trigger_tokens:
            raise UnsupportedParameter(
                f"{self.at}.type compact_20260112 is not supported: the prompt has {tokens} tokens "
                f"and the trigger is {self.trigger_tokens}; send a summary of the conversation "
                "instead, or use clear_tool_uses_20250919",
                param=f"{self.at}.type",
            )


Edit = ClearThinking | ClearToolUses | Compact


def _without_inputs(message: Message, ids: set[str]) -> Message:
    if not any(call.id in ids for call in message.tool_calls):
        return message
    calls = (replace(c, arguments="{}") if c.id in ids else c for c in message.tool_calls)
    return replace(message, tool_calls=tuple(calls))


async def edited(
    edits: Sequence[Edit], chat: Chat, count: Callable[[Chat], Awaitable[int]]
) -> tuple[Chat, list[AppliedEdit]]:
    """Return the chat after the edits, and those that changed it. count: the tokens of a prompt.

    Raises UnsupportedParameter for a compaction that is due, and what `count` raises.
    """
    applied: list[AppliedEdit] = []
    for edit in edits:
        if isinstance(edit, Compact):
            edit.check(await count(chat))
            continue
        made, number = edit.cleared(chat)
        if not number:
            continue
        tokens = await count(chat)
        freed = tokens - await count(made)
        if edit.applies(tokens, freed):
            chat = made
            applied.append(edit.applied(number, freed))
    return chat, applied


def read_edits(value: Mapping[str, object] | None) -> tuple[Edit, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part."""
    if value is None:
        return ()
    fields = dict(value)
    given = fields.pop("edits", None)
    refuse_unsupported(fields, {}, at=f"{_FIELD}.")
    if given is None:
        return ()
    at = f"{_FIELD}.edits"
    entries = cast("list[object]", given) if isinstance(given, list) else None
    if entries is None or len(entries) > MOST_EDITS:
        raise InvalidRequest(f"{at}: send a list of at most {MOST_EDITS} edits", param=at)
    return tuple(_edit(each, f"{at}[{n}]") for n, each in enumerate(entries))


def _edit(entry: object, at: str) -> Edit:
    fields = object_at(entry, at)
    kind = fields.pop("type", None)
    readers = {
        "clear_thinking_20251015": _clear_thinking,
        "clear_tool_uses_20250919": _clear_tool_uses,
        "compact_20260112": _compact,
    }
    if not isinstance(kind, str) or kind not in readers:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send one of {', '.join(readers)}",
            param=f"{at}.type",
        )
    edit = readers[kind](fields, at)
    refuse_unsupported(fields, {}, at=f"{at}.")
    return edit


def _clear_thinking(fields: dict[str, Any], at: str) -> Edit:
    keep = fields.pop("keep", None)
    if keep is None:
        return ClearThinking(KEPT_THOUGHTS)
    if keep in ("all", {"type": "all"}):
        return ClearThinking(None)
    return ClearThinking(_amount(keep, f"{at}.keep", "thinking_turns", least=1)[1])


def _clear_tool_uses(fields: dict[str, Any], at: str) -> Edit:
    made: dict[str, Any] = {}
    if (trigger := fields.pop("trigger", None)) is not None:
        kind, value = _amount(trigger, f"{at}.trigger", "input_tokens", "tool_uses")
        if kind == "input_tokens":
            made["trigger_tokens"] = value
        else:
            made |= {"trigger_tokens": None, "trigger_calls": value}
    if (keep := fields.pop("keep", None)) is not None:
        made["keep"] = _amount(keep, f"{at}.keep", "tool_uses")[1]
    if (least := fields.pop("clear_at_least", None)) is not None:
        made["at_least"] = _amount(least, f"{at}.clear_at_least", "input_tokens")[1]
    if (exclude := fields.pop("exclude_tools", None)) is not None:
        made["exclude"] = _names(exclude, f"{at}.exclude_tools")
    if (inputs := fields.pop("clear_tool_inputs", None)) is not None:
        single = isinstance(inputs, bool)
        made["inputs"] = inputs if single else _names(inputs, f"{at}.clear_tool_inputs")
    return ClearToolUses(**made)


def _compact(fields: dict[str, Any], at: str) -> Edit:
    for name in ("instructions", "pause_after_compaction"):
        fields.pop(name, None)  # of a summary that is never written
    trigger = fields.pop("trigger", None)
    if trigger is None:
        return Compact(at, COMPACT_TOKENS)
    return Compact(at, _amount(trigger, f"{at}.trigger", "input_tokens")[1])


def _amount(value: object, at: str, *kinds: str, least: int = 0) -> tuple[str, int]:
    """Read {"type": KIND, "value": NUMBER}. Raises InvalidRequest."""
    fields = object_at(value, at)
    kind, amount = fields.pop("type", None), fields.pop("value", None)
    refuse_unsupported(fields, {}, at=f"{at}.")
    good = isinstance(amount, int) and not isinstance(amount, bool) and amount >= least
    if kind not in kinds or not good:
        raise InvalidRequest(
            f'{at}: send {{"type": "{kinds[0]}", "value": N}}, with a type of '
            f"{' or '.join(kinds)} and a whole number of {least} or more",
            param=at,
        )
    return str(kind), cast("int", amount)


def _names(value: object, at: str) -> frozenset[str]:
    entries = cast("list[object]", value) if isinstance(value, list) else [None]
    if len(entries) > MOST_NAMES or not all(isinstance(each, str) for each in entries):
        raise InvalidRequest(f"{at}: send a list of at most {MOST_NAMES} names", param=at)
    return frozenset(cast("list[str]", entries))
