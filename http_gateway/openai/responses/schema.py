"""The body of POST /v1/responses and the treatment of each of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from http_gateway.bounds import bounded, checked, ranged
from http_gateway.openai.chat_schema import template_variables
from http_gateway.openai.constraint import labelled_schema
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.responses.mcp_tools import McpServer, read_server
from http_gateway.openai.responses.open_item import ReasoningStyle
from http_gateway.openai.responses.tools import OfferedTools, read_offered
from http_gateway.openai.schema import SamplingFields, sampling_of
from http_gateway.openai.tools import read_choice
from http_gateway.openai.unsupported import TIERS, refuse_unsupported
from sax.chat import ChatOptions
from sax.client.routing import current_session
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.format import quoted
from sax.types import ReplyOptions, SamplingParams

_ROUTE = RequestRoute.RESPONSES
LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
INCLUDED = (
    LOGPROBS,
    SEALED_REASONING,
    # Parts of items that are listed in full, or that no answer here has
    "message.input_image.image_url",
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url"),
)

# Labels for the request, and hints for caches; they do not change the answer.
LABELS = frozenset(
    {
        *("user", "safety_identifier", "prompt_cache_key", "client_metadata"),
        *("prompt_cache_options", "prompt_cache_retention"),
    }
)
# Field -> the values besides null that change nothing. Any other value is refused.
UNCHANGED: dict[str, tuple[object, ...]] = {
    "context_management": ([],),
    "moderation": (),
    "prompt": (),
    "service_tier": TIERS,
}
REMARKS = {
    "background": "Answer while the client is away; needs a store, and no stream.",
    "client_metadata": "Codex's labels.",
    "context_management": "Send truncation: auto.",
    "conversation": "Its items come before the input; input and output are added to it.",
    "include": "Log-probabilities and sealed reasoning; parts of other answers change nothing.",
    "max_tool_calls": "Bounds calls of tools that the server runs.",
    "max_tokens": "A field of chats: send max_output_tokens.",
    "moderation": "No model here judges.",
    "prompt": "No prompts are kept here: send instructions and input.",
    "prompt_cache_options": "Every prompt is cached here.",
    "prompt_cache_retention": "Every prompt is cached here.",
    "reasoning": "effort is the template's; with summary, the whole reasoning comes as one.",
    "service_tier": "All tiers are served alike.",
    "store": "True by default where there is a store with room.",
    "text": "format is enforced by a grammar; verbosity is medium.",
    "tools": "Functions, custom tools and namespaces of them; hosted tools that clients always "
    "offer are left out beside others, and named in a header.",
    "tool_choice": "allowed_tools bounds calls to some tools; the template has all of them.",
    "truncation": "auto drops the oldest turns that do not fit, and a header counts them.",
}
STREAM_OPTIONS_UNCHANGED: dict[str, tuple[object, ...]] = {"include_obfuscation": (False,)}
_TEXT: dict[str, tuple[object, ...]] = {"verbosity": ("medium",)}
SUMMARIES = ("auto", "concise", "detailed")


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

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_ROUTE, "model")]
    input: Annotated[
        str | list[dict[str, object]], BeforeValidator(_read_input), bounded(_ROUTE, "input")
    ]
    instructions: Annotated[str, bounded(_ROUTE, "instructions")] | None = None
    previous_response_id: Annotated[str, bounded(_ROUTE, "previous_response_id")] | None = None
    conversation: Annotated[str | dict[str, str], bounded(_ROUTE, "conversation")] | None = None
    store: Annotated[bool, checked(_ROUTE, "store")] | None = None
    stream: Annotated[bool, checked(_ROUTE, "stream")] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Annotated[bool, checked(_ROUTE, "background")] | None = None
    # Of tools that the server runs
    max_tool_calls: (
        Annotated[int, ranged(_ROUTE, "max_tool_calls"), checked(_ROUTE, "max_tool_calls")] | None
    ) = None
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
        refuse_unsupported(extra, UNCHANGED, LABELS, route=_ROUTE)
        self._check_spelling()
        self._check_background()
        self._check_conversation()
        self._check_include()
        refuse_unsupported(self.stream_options, STREAM_OPTIONS_UNCHANGED, at="stream_options.")
        if self.stream_options and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        for checked_when_read in ("options", "style", "servers"):
            getattr(self, checked_when_read)
        self.sampling()

    def _check_spelling(self) -> None:
        if getattr(self, "max_tokens", None) is not None:
            raise UnsupportedParameter(
                "max_tokens is a field of chats: send max_output_tokens", param="max_tokens"
            )

    def _check_background(self) -> None:
        if self.background and self.stream:
            raise UnsupportedParameter(
                "stream is not supported with background: no events are kept; leave it out, and "
                "ask for the response until it has ended",
                param="stream",
            )
        if self.background and self.store is False:
            raise InvalidRequest(
                "a response in the background is stored: leave out store", param="store"
            )

    def _check_conversation(self) -> None:
        given = self.conversation
        if isinstance(given, dict) and [*given] != ["id"]:
            raise InvalidRequest(
                "conversation: send its id, or an object with an id", param="conversation"
            )
        if given and self.previous_response_id:
            raise InvalidRequest(
                "conversation and previous_response_id both say what was before: send one of them",
                param="conversation",
            )

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given["id"] if isinstance(given, dict) else given

    def _check_include(self) -> None:
        check_included(self.include or ())
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

    @property
    def summary(self) -> str | None:
        """The kind of reasoning summary asked for, or None. Raises UnsupportedParameter."""
        given = {k: v for k, v in (self.reasoning or {}).items() if k != "effort"}
        names: dict[str, tuple[object, ...]] = {"summary": SUMMARIES, "generate_summary": SUMMARIES}
        refuse_unsupported(given, names, at="reasoning.")
        return cast("str | None", given.get("summary") or given.get("generate_summary"))

    @property
    def style(self) -> ReasoningStyle:
        return ReasoningStyle(
            summary=self.summary is not None, sealed=SEALED_REASONING in (self.include or ())
        )

    @cached_property
    def servers(self) -> tuple[McpServer, ...]:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        servers = tuple(read_server(entry, at) for at, entry in self.offered.servers)
        labels = [server.label for server in servers]
        for n, server in enumerate(servers):
            if server.label in labels[:n]:
                at = f"{server.at}.server_label"
                raise InvalidRequest(f"{at} is {server.label} again: give others", param=at)
        return servers

    @cached_property
    def offered(self) -> OfferedTools:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        return read_offered(self.tools or (), self.tool_choice)

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        tools = self.offered.tools
        more = bool(self.offered.servers)
        chosen = read_choice(self.tool_choice, tools, nested=False, more=more)
        return ChatOptions(
            tools=tools,
            tool_choice=chosen.choice,
            tool_name=chosen.name,
            allowed_tools=chosen.allowed,
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
            tools=chat.callable_tools,
            parallel_calls=chat.parallel_tool_calls,
        )


def check_included(names: Sequence[str]) -> None:
    """Raise UnsupportedParameter for a part of replies that cannot be included."""
    for n, name in enumerate(names):
        if name not in INCLUDED:
            raise UnsupportedParameter(
                f"include[{n}] {quoted(name)} is not supported: send {', '.join(INCLUDED)}, or "
                "leave it out",
                param=f"include[{n}]",
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


class ResponseQuery(BaseModel):
    """GET /v1/responses/{response_id}."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)

    stream: Annotated[bool, Field(json_schema_extra={"const": False})] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a stream, which is not kept."""
        if self.stream:
            raise UnsupportedParameter(
                "stream is not supported here: events are not kept; leave it out", param="stream"
            )
