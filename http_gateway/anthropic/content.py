"""Converts Anthropic's messages to those that a chat template reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict

from http_gateway.anthropic.blocks import Part, SentBlock, joined_texts, read_blocks
from http_gateway.anthropic.mcp_servers import LISTING, Listing, read_listing
from http_gateway.bounds import bounded
from http_gateway.images.image_link import joined
from http_gateway.openai.tools import called_name, object_at, read_arguments, read_name
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Image, Message, ToolCall
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.format import quoted

ROLES = ("system", "user", "assistant")
# Field of a message -> the values besides null that change nothing
UNCHANGED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "system": {"clear_at": ("never",), "output_config": ({},)},
    "user": {},
    "assistant": {},
}
UNTIL_NEXT = "next_user_message"  # a value of clear_at
# Claude Code tells its version and its client in a block of the system prompt.
BILLING = "x-anthropic-billing-header:"


class AnthropicTurn(BaseModel):
    """One message as received; its content is a text or a list of blocks."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(RequestRoute.MESSAGES, "messages.role")]
    content: Annotated[object, bounded(RequestRoute.MESSAGES, "messages.content")]


def read_chat(
    system: str | list[dict[str, object]] | None, turns: Sequence[AnthropicTurn]
) -> tuple[Message, ...]:
    """Return the system prompt, if there is one, and the messages.

    System messages before all others belong to the system prompt. Raises InvalidRequest or
    UnsupportedParameter naming the part, as in messages[2].role.
    """
    before, rest = read_system(system), read_turns(turns)
    if before and rest[:1] and rest[0].role == "system":
        return (_joined([*before, rest[0]]), *rest[1:])
    return (*before, *rest)


def read_system(value: str | list[dict[str, object]] | None) -> tuple[Message, ...]:
    """Return the system prompt as a message, if there is one. Raises InvalidRequest.

    A billing header is left out: it is a label of the request, and as the prompt's first words
    would differ from one session to the next, so that no prefix were found in the cache.
    """
    blocks = read_blocks(value or "", "system", "system")
    text = joined_texts(each for each in blocks if not each.text("text").startswith(BILLING))
    return (Message("system", text),) if text else ()


def read_turns(turns: Sequence[AnthropicTurn]) -> tuple[Message, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in messages[2].role."""
    calls: dict[str, str] = {}
    groups: list[list[Message]] = []
    last_user = max((n for n, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for number, turn in enumerate(turns):
        said = _messages_of(turn, f"messages[{number}]", calls)
        if turn.role == "system" and _is_over(turn, number < last_user):
            continue
        for message in said:
            if message.role == "system" and any(group[-1].role != "system" for group in groups):
                message = _reminder(message)
            if groups and _may_join(groups[-1][-1], message):
                groups[-1].append(message)
            else:
                groups.append([message])
    made = tuple(map(_joined, groups))
    last = _objects(turns[-1].content) if turns else []
    if any(block.get("type") == "tool_use" for block in last):
        at = f"messages[{len(turns) - 1}].content"
        raise InvalidRequest(
            f"{at} calls a tool: send its result as a tool_result in a user message", param=at
        )
    return made


def referenced_tools(turns: Sequence[AnthropicTurn]) -> tuple[str, ...]:
    """Return the names in the tool_reference blocks of checked messages, in order, each once."""
    results = (block for turn in turns for block in _objects(turn.content))
    held = (each for result in results for each in _objects(result.get("content")))
    named = [str(each["tool_name"]) for each in held if each.get("type") == "tool_reference"]
    return tuple(dict.fromkeys(named))


def listed_tools(turns: Sequence[AnthropicTurn]) -> dict[str, Listing]:
    """Return the tools in the mcp_tool_listing blocks of checked messages, by server."""
    blocks = (block for turn in turns for block in _objects(turn.content))
    listings = [block for block in blocks if block.get("type") == LISTING]
    return {str(each.get("mcp_server_name")): each["tools"] for each in listings}


def _objects(value: object) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _messages_of(turn: AnthropicTurn, at: str, calls: dict[str, str]) -> Iterable[Message]:
    """calls: name of each call so far by its id; those of this turn are added."""
    if turn.role not in ROLES:
        raise InvalidRequest(
            f"{at}.role {quoted(turn.role)}: use one of {', '.join(ROLES)}", param=f"{at}.role"
        )
    extra = dict(turn.model_extra or {})
    if turn.role == "system" and extra.get("clear_at") == UNTIL_NEXT:
        del extra["clear_at"]  # read by `_is_over`
    refuse_unsupported(extra, UNCHANGED[turn.role], at=f"{at}.")
    blocks = read_blocks(turn.content, f"{at}.content", turn.role)
    if not blocks:
        raise InvalidRequest(f"{at}.content is empty: send a block", param=f"{at}.content")
    if turn.role == "assistant":
        return _assistant(blocks, calls)
    return [*_user(blocks, turn.role, calls)]


def _is_over(turn: AnthropicTurn, answered: bool) -> bool:
    """True for a system message that was for one turn, which has passed."""
    return answered and (turn.model_extra or {}).get("clear_at") == UNTIL_NEXT


def _reminder(message: Message) -> Message:
    """Return a system message that comes after others as a part of the user's turn: most chat
    templates have a place for a system message at the beginning only."""
    return Message("user", f"<system-reminder>\n{message.content}\n</system-reminder>")


def _assistant(blocks: Sequence[SentBlock], calls: dict[str, str]) -> list[Message]:
    """Return a turn: one message, or several where results of MCP servers came between."""
    made: list[Message] = []
    said: list[SentBlock] = []
    waiting: dict[str, str] = {}  # calls of MCP servers without a result: ids and names
    for block in blocks:
        if block.kind == LISTING:
            read_listing(block.fields.get("tools"), f"{block.at}.tools")
        elif block.kind == "mcp_tool_result":
            if said:
                made.append(_said(said, calls, waiting))
                said = []
            made.append(_result(block, calls))
            waiting.pop(made[-1].tool_call_id, None)
        else:
            made += [] if said else _not_made(waiting)
            said.append(block)
    if said or not made:
        made.append(_said(said, calls, waiting))
    return [*made, *_not_made(waiting)]


def _not_made(waiting: dict[str, str]) -> list[Message]:
    """Return results of calls that an answer's end cut off: templates need one for each."""
    made = [Message("tool", "This call was not made.", name, id) for id, name in waiting.items()]
    waiting.clear()
    return made


def _said(blocks: Sequence[SentBlock], calls: dict[str, str], waiting: dict[str, str]) -> Message:
    """calls, waiting: those of this message are added."""
    kinds = ("tool_use", "mcp_tool_use")
    made = {block.at: _call(block) for block in blocks if block.kind in kinds}
    calls.update({call.id: call.name for call in made.values()})
    served = [made[block.at] for block in blocks if block.kind == "mcp_tool_use"]
    waiting.update({call.id: call.name for call in served})
    reasoning = joined_texts(blocks, "thinking")
    tool_calls = tuple(made.values())
    return Message("assistant", joined_texts(blocks), tool_calls=tool_calls, reasoning=reasoning)


def _call(block: SentBlock) -> ToolCall:
    at = block.at
    given = object_at(block.fields.get("input"), f"{at}.input")
    name = read_name(block.fields.get("name"), at)
    if block.kind == "mcp_tool_use":
        name = read_name(called_name(name, block.id("server_name")), at)
    return ToolCall(block.id("id"), name, read_arguments(given, f"{at}.input"))


def _user(blocks: Iterable[SentBlock], role: str, calls: Mapping[str, str]) -> Iterator[Message]:
    """Return results, texts and images in their order; texts and images that follow each other are
    one message."""
    parts: list[Part] = []
    for block in blocks:
        if block.kind != "tool_result":
            parts += block.parts()
            continue
        if parts:
            yield Message(role, joined(parts))
            parts = []
        yield _result(block, calls)
    if parts:
        yield Message(role, joined(parts))


def _result(block: SentBlock, calls: Mapping[str, str]) -> Message:
    at, id = block.at, block.id("tool_use_id")
    if id not in calls:
        raise InvalidRequest(
            f"{at}.tool_use_id {quoted(id)} is that of no tool_use before it: send the call, too",
            param=f"{at}.tool_use_id",
        )
    holder = "result" if block.kind == "tool_result" else "system"
    held = read_blocks(block.fields.get("content", ""), f"{at}.content", holder)
    parts = [part for each in held for part in each.parts()]
    failed = block.fields.get("is_error", False)
    if not isinstance(failed, bool):
        raise InvalidRequest(f"{at}.is_error: send true or false", param=f"{at}.is_error")
    content = joined(parts)
    if failed:  # chat templates know no failed results, so that the text must say it
        content = f"Error: {content}" if isinstance(content, str) else ("Error:", *content)
    return Message("tool", content, calls[id], id)


def _may_join(before: Message, after: Message) -> bool:
    """True for turns that follow each other and are one to Anthropic and to most templates."""
    return before.role == after.role != "tool" and not before.tool_calls


def _joined(group: Sequence[Message]) -> Message:
    if len(group) == 1:
        return group[0]
    parts = [part for each in group for part in _parts_of(each.content) if part != ""]
    reasoning = "\n".join(each.reasoning for each in group if each.reasoning)
    return replace(group[-1], content=joined(parts), reasoning=reasoning)


def _parts_of(content: Content) -> Sequence[str | Image]:
    return (content,) if isinstance(content, str) else content
