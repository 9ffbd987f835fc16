"""The body of POST /v1/responses and the treatment of each of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from http_gateway.bounds import bounded, checked, ranged
from http_gateway.openai.chat_schema import template_variables
from http_gateway.openai.constraint import labelled_schema
from http_gateway.openai.schema import SamplingFields, sampling_of
from http_gateway.openai.shape import Shape
from http_gateway.openai.tools import read_tools, to_choice
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import ChatOptions, Tool
from sax.client.routing.affinity import current_session
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.format import quoted
from sax.types import ReplyOptions, SamplingParams

_ROUTE = RequestRoute.RESPONSES
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS,)

# Labels for the request; they do not change the answer.
LABELS = frozenset({"user", "safety_identifier", "prompt_cache_key"})
# Field -> the values besides null that change nothing. Any other value is refused.
UNCHANGED: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
STREAM_OPTIONS_UNCHANGED: dict[str, tuple[object, ...]] = {"include_obfuscation": (False,)}
_TEXT: dict[str, tuple[object, ...]] = {"verbosity": ("medium",)}
_REASONING: dict[str, tuple[object, ...]] = {
    "summary": (),
    "generate_summary": (),
    "encrypted_content": (),
}
_REMEDIES = {
    "background": "this server answers while you wait: leave it out, or use /v1/batches",
    "conversation": "send previous_response_id, or all items in input",
}


def _read_input(value: object) -> object:
    """Raise ValueError unless the input is a text or a list of items."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("send a text, or a list of items that is not empty")
    if not all(isinstance(item, dict) for item in cast("list[object]", value)):
        raise ValueError("send items that are objects")
    return cast("list[object]", value)


class ResponseRequest(SamplingFields):
    """POST /v1/responses. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_ROUTE, "model")]
    input: Annotated[
        str | list[dict[str, object]], BeforeValidator(_read_input), bounded(_ROUTE, "input")
    ]
    instructions: Annotated[str, bounded(_ROUTE, "instructions")] | None = None
    previous_response_id: Annotated[str, bounded(_ROUTE, "previous_response_id")] | None = None
    store: Annotated[bool, checked(_ROUTE, "store")] | None = None
    stream: Annotated[bool, checked(_ROUTE, "stream")] | None = None
    stream_options: Annotated[dict[str, object], bounded(_ROUTE, "stream_options")] | None = None
    tools: Annotated[list[dict[str, object]], bounded(_ROUTE, "tools")] | None = None
    tool_choice: Annotated[str | dict[str, object], bounded(_ROUTE, "tool_choice")] | None = None
    parallel_tool_calls: Annotated[bool, checked(_ROUTE, "parallel_tool_calls")] | None = None
    text: Annotated[dict[str, object], bounded(_ROUTE, "text")] | None = None
    reasoning: Annotated[dict[str, object], bounded(_ROUTE, "reasoning")] | None = None
    include: Annotated[list[str], bounded(_ROUTE, "include")] | None = None
    top_logprobs: (
        Annotated[int, ranged(_ROUTE, "top_logprobs"), checked(_ROUTE, "top_logprobs")] | None
    ) = None
    max_output_tokens: (
        Annotated[int, ranged(_ROUTE, "max_output_tokens"), checked(_ROUTE, "max_output_tokens")]
        | None
    ) = None
    metadata: Annotated[dict[str, str], bounded(_ROUTE, "metadata")] | None = None
    # vLLM's, as are the sampling fields that OpenAI does not have
    chat_template_kwargs: (
        Annotated[dict[str, object], bounded(_ROUTE, "chat_template_kwargs")] | None
    ) = None
    priority: Annotated[int, ranged(_ROUTE, "priority"), checked(_ROUTE, "priority")] | None = None
    cache_salt: Annotated[str, bounded(_ROUTE, "cache_salt")] | None = None
    timeout: Annotated[float, ranged(_ROUTE, "timeout")] | None = None

    @property
    def session(self) -> str:
        """The session of the conversation, else of the user; "" for none."""
        labels = self.model_extra or {}
        return current_session() or str(labels.get("prompt_cache_key") or labels.get("user") or "")

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        extra = self.model_extra or {}
        for name, remedy in _REMEDIES.items():
            if extra.get(name):
                raise UnsupportedParameter(f"{name} is not supported: {remedy}", param=name)
        refuse_unsupported(extra, UNCHANGED, LABELS)
        self._check_spelling()
        self._check_include()
        refuse_unsupported(self.stream_options, STREAM_OPTIONS_UNCHANGED, at="stream_options.")
        if self.stream_options and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        self.options  # noqa: B018  (checks its fields)
        self.sampling()

    def _check_spelling(self) -> None:
        if getattr(self, "max_tokens", None) is not None:
            raise UnsupportedParameter(
                "max_tokens is a field of chats: send max_output_tokens", param="max_tokens"
            )

    def _check_include(self) -> None:
        for n, name in enumerate(self.include or ()):
            if name not in INCLUDED:
                raise UnsupportedParameter(
                    f"include[{n}] {quoted(name)} is not supported: send {', '.join(INCLUDED)}, or "
                    "leave it out",
                    param=f"include[{n}]",
                )
        if self.top_logprobs and not self.logprobs_asked:
            raise InvalidRequest(
                f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs"
            )

    @property
    def logprobs_asked(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def format(self) -> dict[str, Any]:
        """The `format` of `text`, by default that of plain text."""
        return cast("dict[str, Any]", (self.text or {}).get("format") or {"type": "text"})

    @property
    def effort(self) -> str | None:
        return cast("str | None", (self.reasoning or {}).get("effort"))

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        reasoning = {k: v for k, v in (self.reasoning or {}).items() if k != "effort"}
        refuse_unsupported(reasoning, _REASONING, at="reasoning.")
        tools = _to_tools(self.tools or ())
        choice, name = to_choice(_choice(self.tool_choice), tools)
        return ChatOptions(
            tools=tools,
            tool_choice=choice,
            tool_name=name,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            chat_template_kwargs=template_variables(
                self.chat_template_kwargs, self.effort, "reasoning.effort"
            ),
            divided=True,
        )

    def sampling(self) -> SamplingParams:
        own: dict[str, Any] = {
            "max_tokens": self.max_output_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs_asked else None,
        }
        return SamplingParams(**{**sampling_of(self), **_constraint(self.text or {}), **own})

    def reply(self) -> ReplyOptions:
        return ReplyOptions()

    def shape(self) -> Shape:
        chat = self.options
        return Shape(
            tools=tuple(tool.name for tool in chat.tools) if chat.may_call else (),
            parallel_calls=chat.parallel_tool_calls,
        )


def _constraint(text: Mapping[str, object]) -> dict[str, Any]:
    """Return the field of SamplingParams that `text` stands for, if it asks for JSON."""
    refuse_unsupported({k: v for k, v in text.items() if k != "format"}, _TEXT, at="text.")
    given = text.get("format")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidRequest("text.format: send an object", param="text.format")
    rest = dict(cast("Mapping[str, object]", given))
    kind = rest.pop("type", None)
    if kind == "text" and not rest:
        return {}
    if kind == "json_object" and not rest:
        return {"json_object": True}
    if kind == "json_schema":
        return labelled_schema("text.format", rest)
    raise UnsupportedParameter(
        f"text.format.type is {quoted(kind)}: send text, json_object or json_schema, with the "
        "fields of that type only",
        param="text.format",
    )


def _to_tools(entries: Sequence[Mapping[str, object]]) -> tuple[Tool, ...]:
    functions = [_function_of(dict(entry), f"tools[{n}]") for n, entry in enumerate(entries)]
    return read_tools(functions, "tools[{}]", "parameters")


def _function_of(entry: dict[str, Any], at: str) -> dict[str, Any]:
    kind = entry.pop("type", None)
    if kind != "function":
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: no tools run on this server; send "
            "functions, and run them yourself",
            param=f"{at}.type",
        )
    return entry


def _choice(value: str | dict[str, object] | None) -> object:
    """Return the choice as a chat's `tool_choice` has it."""
    if not isinstance(value, dict):
        return value
    if set(value) != {"type", "name"} or value["type"] != "function":
        raise UnsupportedParameter(
            f"tool_choice {quoted(value.get('type'))} is not supported: send auto, none, required, "
            'or {"type": "function", "name": ...}',
            param="tool_choice",
        )
    return {"type": "function", "function": {"name": value["name"]}}


class ResponseQuery(BaseModel):
    """GET /v1/responses/{response_id}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: Annotated[bool, Field(json_schema_extra={"const": False})] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a stream, which is not kept."""
        if self.stream:
            raise UnsupportedParameter(
                "stream is not supported here: events are not kept; leave it out", param="stream"
            )
