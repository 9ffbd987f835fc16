"""OpenAI's completion request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, create_model

from http_gateway.bounds import bounded, checked, ranged, setting, sized
from http_gateway.openai.chat_schema import ChatFields
from http_gateway.openai.constraint import CONSTRAINTS, constraint_of
from http_gateway.openai.reply_schema import ReplyFields, Shape, check_beams
from http_gateway.openai.unsupported import (
    CHAT_LABELS,
    CHAT_UNCHANGED,
    STREAM_OPTIONS_UNCHANGED,
    refuse_unsupported,
)
from sax.client.routing import current_session
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.sampling import SAMPLING
from sax.types import ReplyOptions, SamplingParams

_HONOURED = {name: row for name, row in SAMPLING.items() if row.http is not None}
if TYPE_CHECKING:
    SamplingFields = BaseModel
else:
    SamplingFields = create_model(
        "SamplingFields",
        __config__=ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True),
        **{name: (setting(RequestRoute.CHAT, name), None) for name in _HONOURED},
    )


class OpenAiRequest(ReplyFields, SamplingFields):
    """Fields shared by chats and completions, beside those of the table of sampling fields. null
    always means the default."""

    # Chats and completions have the same bounds.
    model: Annotated[str, bounded(RequestRoute.CHAT, "model")]
    response_format: Annotated[
        dict[str, object] | None, bounded(RequestRoute.CHAT, "response_format")
    ] = None
    structured_outputs: Annotated[  # vLLM's, as are all that follow
        dict[str, object] | None, bounded(RequestRoute.CHAT, "structured_outputs")
    ] = None
    guided_json: Annotated[
        dict[str, object] | bool | str | None, bounded(RequestRoute.CHAT, "guided_json")
    ] = None
    guided_regex: Annotated[str | None, bounded(RequestRoute.CHAT, "guided_regex")] = None
    guided_choice: Annotated[list[str] | None, bounded(RequestRoute.CHAT, "guided_choice")] = None
    guided_grammar: Annotated[str | None, bounded(RequestRoute.CHAT, "guided_grammar")] = None
    thinking_token_budget: (
        Annotated[
            int,
            ranged(RequestRoute.CHAT, "thinking_token_budget"),
            checked(RequestRoute.CHAT, "thinking_token_budget"),
        ]
        | None
    ) = None
    priority: (
        Annotated[
            int, ranged(RequestRoute.CHAT, "priority"), checked(RequestRoute.CHAT, "priority")
        ]
        | None
    ) = None
    cache_salt: Annotated[str, bounded(RequestRoute.CHAT, "cache_salt")] | None = None  # vLLM's
    # Requests with the same one stay at one replica; the header x-session-id counts more.
    prompt_cache_key: Annotated[str, bounded(RequestRoute.CHAT, "prompt_cache_key")] | None = None
    user: Annotated[str, bounded(RequestRoute.CHAT, "user")] | None = None
    # Seconds, waiting included
    timeout: Annotated[float, ranged(RequestRoute.CHAT, "timeout")] | None = None

    def _check_stream_options(self) -> None:
        options = self.stream_options
        if options is None:
            return
        if not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        refuse_unsupported(options.model_extra, STREAM_OPTIONS_UNCHANGED, at="stream_options.")

    def _check_thinking(self) -> None:
        ours, theirs = getattr(self, "max_thinking_tokens"), self.thinking_token_budget  # noqa: B009
        if None not in (ours, theirs) and ours != theirs:
            raise InvalidRequest(
                "max_thinking_tokens and thinking_token_budget differ: send only one",
                param="thinking_token_budget",
            )

    @property
    def session(self) -> str:
        """The session of the conversation, else of the user; "" for none."""
        return current_session() or self.prompt_cache_key or self.user or ""

    @property
    def most_tokens(self) -> int | None:
        return getattr(self, "max_tokens")  # noqa: B009  (a field of the table)

    def _sampling(self, **own: Any) -> SamplingParams:
        """Return the fields of the table; `own`: those that the body spells differently."""
        constraint = constraint_of({name: getattr(self, name) for name in CONSTRAINTS})
        if self.thinking_token_budget is not None:
            own["max_thinking_tokens"] = self.thinking_token_budget
        return SamplingParams(**{**sampling_of(self), **constraint, **own})


def sampling_of(body: SamplingFields) -> dict[str, Any]:
    """Return those fields of the table that a body has a value for."""
    given = {name: getattr(body, name) for name in _HONOURED}
    return {name: _ours(name, value) for name, value in given.items() if value is not None}


def _ours(name: str, value: Any) -> Any:
    """Return a value of the body as the table's own."""
    if isinstance(value, list):
        return tuple(cast("list[object]", value))
    convert = _HONOURED[name].from_http
    return convert(value) if convert else value


class ChatMessage(BaseModel):
    """One message as received; `http_gateway.openai.chat` parses its content."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(RequestRoute.CHAT, "messages.role")]
    content: Annotated[object, bounded(RequestRoute.CHAT, "messages.content")] = None


class ChatRequest(ChatFields, OpenAiRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage],
        sized(RequestRoute.CHAT, "messages", least=1),
        bounded(RequestRoute.CHAT, "messages"),
    ]
    max_completion_tokens: (
        Annotated[
            int,
            ranged(RequestRoute.CHAT, "max_completion_tokens"),
            checked(RequestRoute.CHAT, "max_completion_tokens"),
        ]
        | None
    ) = None
    logprobs: Annotated[bool, checked(RequestRoute.CHAT, "logprobs")] | None = None
    top_logprobs: (
        Annotated[
            int,
            ranged(RequestRoute.CHAT, "top_logprobs"),
            checked(RequestRoute.CHAT, "top_logprobs"),
        ]
        | None
    ) = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, CHAT_UNCHANGED, CHAT_LABELS)
        self.options  # noqa: B018  (checks its fields)
        self._check_stream_options()
        self._check_thinking()
        check_beams(self, self.choices)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        both = None not in (self.most_tokens, self.max_completion_tokens)
        if both and self.most_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ: send only one", param="max_tokens"
            )
        self._check_reply(self._tops)

    @property
    def _tops(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def sampling(self) -> SamplingParams:
        most = self.max_completion_tokens or self.most_tokens
        beams = self.choices if self.use_beam_search else 0
        return self._sampling(max_tokens=most, logprobs=self._tops, beam_size=beams)

    def reply(self) -> ReplyOptions:
        return self._reply(self.prompt_logprobs)

    def shape(self) -> Shape:
        chat = self.options
        return replace(
            self._shape(self.choices),
            tools=chat.callable_tools,
            custom_tools=self.custom_tools,
            parallel_calls=chat.parallel_tool_calls,
            include_reasoning=self.include_reasoning is not False,
        )
