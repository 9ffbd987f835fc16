"""Anthropic's request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from http_gateway.anthropic.blocks import check_cache_control
from http_gateway.anthropic.content import AnthropicTurn, read_chat, referenced_tools
from http_gateway.anthropic.context_edits import Edit, read_edits
from http_gateway.anthropic.mcp_servers import AnthropicServer, read_servers
from http_gateway.anthropic.tools import read_anthropic_choice, read_anthropic_tools
from http_gateway.bounds import bounded, checked, ranged, sized
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.tools import object_at, refuse_others
from http_gateway.openai.unsupported import refuse_unsupported
from sax.client.routing import current_session
from sax.errors import InvalidRequest, NotFound, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.types import ChatOptions, Message, SamplingParams

KINDS = ("enabled", "disabled", "adaptive")
DISPLAYS = ("summarized", "updates", "omitted")
MISMATCHES = ("error", "drop_block")
_BUDGET = field(RequestRoute.MESSAGES, "thinking.budget_tokens")


@dataclass(frozen=True, slots=True)
class AskedThinking:
    kind: str = ""  # one of KINDS; "": as the model's template has it
    budget: int | None = None  # tokens of reasoning
    # With False the blocks of reasoning are empty. Else they have all of it: no model here writes
    # summaries or updates.
    shown: bool = True


def read_thinking(value: Mapping[str, object] | None) -> AskedThinking:
    """Raises InvalidRequest or UnsupportedParameter naming the field."""
    if value is None:
        return AskedThinking()
    fields = dict(value)
    kind, budget = fields.pop("type", None), fields.pop("budget_tokens", None)
    display, binding = fields.pop("display", None), fields.pop("block_binding", None)
    kind = _one_of(KINDS, kind, "thinking.type")
    if display is not None:
        display = _one_of(DISPLAYS, display, "thinking.display")
    # Reasoning is not signed here, so that none fails the check that block_binding is about.
    if binding not in (None, {}, *({"prefix_mismatch_behavior": each} for each in MISMATCHES)):
        raise InvalidRequest(
            "thinking.block_binding: send a prefix_mismatch_behavior of error or drop_block",
            param="thinking.block_binding",
        )
    refuse_unsupported(fields, {}, at="thinking.")
    return AskedThinking(kind, _read_budget(kind, budget), display != "omitted")


def _one_of(known: tuple[str, ...], value: object, at: str) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise InvalidRequest(f"{at} is {quoted(value)}: give one of {', '.join(known)}", param=at)


def _read_budget(kind: str, value: object) -> int | None:
    if (kind == "enabled") != (value is not None):
        raise InvalidRequest(
            "thinking.budget_tokens belongs to the type enabled, and only there",
            param="thinking.budget_tokens",
        )
    if value is None:
        return None
    _BUDGET.read(value)
    return value if isinstance(value, int) else None


_ROUTE = RequestRoute.MESSAGES
_SCHEMA = field(RequestRoute.STREAM, "json_schema")

# Field -> the values besides null that change nothing. Any other value is refused.
SHARED_UNCHANGED: dict[str, tuple[object, ...]] = {
    "speed": ("standard", "fast"),  # there is one speed
    "user_profile_id": (),
    "workspace_id": (),
}
MESSAGE_UNCHANGED: dict[str, tuple[object, ...]] = {
    **SHARED_UNCHANGED,
    "billing_policy": ({"type": "billing_policy", "bill_to": "self"},),
    "compaction": (),
    "container": (),
    "inference_geo": ("global",),  # the cell is where it is
    "service_tier": ("auto", "standard_only"),
}
COUNT_UNCHANGED: dict[str, tuple[object, ...]] = {
    **SHARED_UNCHANGED,
    "compaction": ({"type": "summarize"},),
}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
# Field that the cell may refuse -> ours that stands for it
NAMES = {
    "chat_template_kwargs.enable_thinking": "thinking",
    "reasoning_effort": "output_config.effort",
}
# Those that are left out where a model's template has no variable for them: a model that cannot
# reason, or not more or less, answers as it would without them.
HINTS = frozenset(NAMES)


class AnthropicFields(BaseModel):
    """Fields of a prompt. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_ROUTE, "model")]
    messages: Annotated[
        list[AnthropicTurn], sized(_ROUTE, "messages", least=1), bounded(_ROUTE, "messages")
    ]
    system: Annotated[str | list[dict[str, object]], bounded(_ROUTE, "system")] | None = None
    tools: Annotated[list[dict[str, object]], bounded(_ROUTE, "tools")] | None = None
    tool_choice: Annotated[dict[str, object], bounded(_ROUTE, "tool_choice")] | None = None
    thinking: Annotated[dict[str, object], bounded(_ROUTE, "thinking")] | None = None
    output_config: Annotated[dict[str, object], bounded(_ROUTE, "output_config")] | None = None
    mcp_servers: Annotated[list[dict[str, object]], bounded(_ROUTE, "mcp_servers")] | None = None
    cache_control: dict[str, object] | None = None
    context_management: (
        Annotated[dict[str, object], bounded(_ROUTE, "context_management")] | None
    ) = None
    thread: dict[str, object] | None = None
    betas: Annotated[list[str], bounded(_ROUTE, "betas")] | None = None  # the header's, too
    anthropic_beta: Annotated[list[str], bounded(_ROUTE, "betas")] | None = None
    anthropic_version: Annotated[str, bounded(_ROUTE, "anthropic_version")] | None = None
    # Models that answer where this one declines for a policy; none here has one.
    fallbacks: (
        Annotated[list[dict[str, object]] | Literal["default"], bounded(_ROUTE, "fallbacks")] | None
    ) = None
    # Asks why the cache did not have a prompt; the reply does not say.
    diagnostics: Annotated[dict[str, object], bounded(_ROUTE, "diagnostics")] | None = None

    @cached_property
    def prompt(self) -> tuple[Message, ...]:
        """Raises InvalidRequest or UnsupportedParameter naming the part."""
        return read_chat(self.system, self.messages)

    @cached_property
    def edits(self) -> tuple[Edit, ...]:
        """Raises InvalidRequest or UnsupportedParameter naming the part."""
        return read_edits(self.context_management)

    @cached_property
    def servers(self) -> tuple[AnthropicServer, ...]:
        """The MCP servers. Raises InvalidRequest or UnsupportedParameter naming the part."""
        return read_servers(self.mcp_servers or (), self.tools or ())

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        # A last message of the assistant is the beginning of its answer.
        begun = bool(self.prompt) and self.prompt[-1].role == "assistant"
        tools = read_anthropic_tools(self.tools or (), referenced_tools(self.messages))
        more = bool(self.servers)
        choice, name, several = read_anthropic_choice(self.tool_choice, tools, more=more)
        return ChatOptions(
            tools=tools,
            tool_choice=choice,
            tool_name=name,
            parallel_tool_calls=several,
            chat_template_kwargs=self._template_kwargs(),
            add_generation_prompt=not begun,
            continue_final_message=begun,
            divided=True,
        )

    @cached_property
    def thoughts(self) -> AskedThinking:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        return read_thinking(self.thinking)

    def _check_shared(self) -> None:
        check_cache_control(self.cache_control, "cache_control")
        _check_thread(self.thread)
        _ = self.servers, self.options, self.edits  # checks their fields

    def _template_kwargs(self) -> str:
        """Return the variables of the template as JSON; "": there are none."""
        given: dict[str, object] = {}
        effort = self._output("effort")
        if effort is not None:
            if effort not in EFFORTS:
                raise InvalidRequest(
                    f"output_config.effort is {quoted(effort)}: give one of {', '.join(EFFORTS)}",
                    param="output_config.effort",
                )
            given["reasoning_effort"] = effort
        if self.thoughts.kind == "enabled":
            given["enable_thinking"] = True
        elif self.thoughts.kind == "disabled":
            given["reasoning_effort"] = "none"  # where a template cannot tell, nothing changes
        return json.dumps(given) if given else ""

    def _output(self, name: str) -> object:
        """Return a field of output_config. Raises UnsupportedParameter for an unknown one."""
        fields = dict(self.output_config or {})
        refuse_others(
            {each: value for each, value in fields.items() if each not in ("effort", "format")},
            "output_config",
        )
        return fields.get(name)


class MessageRequest(AnthropicFields):
    """POST /v1/messages."""

    max_tokens: Annotated[int, ranged(_ROUTE, "max_tokens"), checked(_ROUTE, "max_tokens")]
    temperature: (
        Annotated[float, ranged(_ROUTE, "temperature"), checked(_ROUTE, "temperature")] | None
    ) = None
    top_p: Annotated[float, ranged(_ROUTE, "top_p"), checked(_ROUTE, "top_p")] | None = None
    top_k: Annotated[int, ranged(_ROUTE, "top_k"), checked(_ROUTE, "top_k")] | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            sized(_ROUTE, "stop_sequences"),
            bounded(_ROUTE, "stop_sequences"),
        ]
        | None
    ) = None
    stream: Annotated[bool, checked(_ROUTE, "stream")] | None = None
    metadata: Annotated[dict[str, object], bounded(_ROUTE, "metadata")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, MESSAGE_UNCHANGED)
        self._check_shared()
        self._check_metadata()
        self.sampling()

    @property
    def session(self) -> str:
        """The session of the conversation, else of the user; "" for none."""
        return current_session() or str((self.metadata or {}).get("user_id") or "")

    def _check_metadata(self) -> None:
        for name, value in (self.metadata or {}).items():
            if name != "user_id" or not isinstance(value, str | None):
                raise UnsupportedParameter(
                    f"metadata.{name} is not supported: send user_id, a text, or leave it out",
                    param=f"metadata.{name}",
                )

    def sampling(self) -> SamplingParams:
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": tuple(self.stop_sequences or ()),
            "max_tokens": self.max_tokens,
            "max_thinking_tokens": self.thoughts.budget,
            "json_schema": self._schema(),
        }
        return SamplingParams(**{name: each for name, each in given.items() if each is not None})

    def _schema(self) -> str | None:
        """Return the JSON Schema that the answer keeps to. Raises InvalidRequest."""
        value = self._output("format")
        if value is None:
            return None
        at = "output_config.format"
        fields = object_at(value, at)
        if fields.pop("type", None) != "json_schema":
            raise UnsupportedParameter(
                f"{at}.type: json_schema only is supported", param=f"{at}.type"
            )
        schema = json.dumps(object_at(fields.pop("schema", None), f"{at}.schema"))
        refuse_others(fields, at)
        _SCHEMA.check_text(schema, f"{at}.schema")
        return schema

    def shape(self) -> Shape:
        chat = self.options
        return Shape(
            tools=chat.callable_tools,
            parallel_calls=chat.parallel_tool_calls,
            include_reasoning=self.thoughts.kind != "disabled",
        )


class CountRequest(AnthropicFields):
    """POST /v1/messages/count_tokens."""

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, COUNT_UNCHANGED)
        self._check_shared()


class ThreadNotFound(NotFound):
    """A conversation that this gateway does not hold."""


def _check_thread(value: Mapping[str, object] | None) -> None:
    """Raise ThreadNotFound for a thread that goes on, InvalidRequest for what is no thread.

    This gateway holds no conversations. The first request of a thread has it whole, and a client
    that gets the error for a later one sends it whole again.
    """
    if value is None or value == {"type": "create"}:
        return
    if value.get("type") == "continue":
        raise ThreadNotFound(
            "thread.previous_message_id is not known: this gateway holds no conversations; send "
            "the whole conversation in messages",
            param="thread",
        )
    raise InvalidRequest('thread: send {"type": "create"}, or leave it out', param="thread")
