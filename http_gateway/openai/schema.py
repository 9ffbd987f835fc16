"""OpenAI's completion request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from http_gateway.bounds import bounded, check_names, checked, ranged, setting, sized
from http_gateway.openai.constraint import CONSTRAINTS, constraint_of
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import field
from sax.format import shortened
from sax.types import SamplingParams

MAX_PROMPTS = field(RequestRoute.COMPLETIONS, "prompt").count or 0  # prompts x n of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default

# Labels for the request; they do not change the answer.
_HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})

# Field -> the values besides null that change nothing. Any other value is refused.
_COMMON: dict[str, tuple[object, ...]] = {
    # vLLM extensions that are not supported here
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "cache_salt": (),
}
_CHAT: dict[str, tuple[object, ...]] = {
    **_COMMON,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),  # without tools both mean a text answer
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_COMPLETION: dict[str, tuple[object, ...]] = {
    **_COMMON,
    "echo": (False,),
    "suffix": ("",),
}
_STREAM_OPTIONS: dict[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
    "continuous_usage_stats": (False,),
}


def refuse_unsupported(
    extra: Mapping[str, object] | None,
    no_op: Mapping[str, tuple[object, ...]],
    harmless: frozenset[str] = frozenset(),
    at: str = "",
) -> None:
    """Raise UnsupportedParameter for the first field that could not be honoured.

    `no_op`: for each known field, the values that change nothing and so are accepted.
    """
    if not extra:
        return
    check_names(extra, at)
    for name, value in extra.items():
        if name in harmless:
            field(RequestRoute.CHAT, name).check(value, at + name)
            continue
        if name in no_op and _changes_nothing(value, no_op[name]):
            continue
        path = at + shortened(name)
        raise UnsupportedParameter(_refusal(path, no_op.get(name)), param=path)


def _changes_nothing(value: object, no_op: tuple[object, ...]) -> bool:
    same = (
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in no_op
    )
    return value is None or any(same)


def _refusal(name: str, no_op: tuple[object, ...] | None) -> str:
    if no_op is None:
        return f"{name} is not a known field: leave it out"
    if not no_op:
        return f"{name} is not supported: leave it out"
    values = " or ".join(repr(value) for value in no_op)
    return f"{name} is not supported: leave it out, or send {values}"


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    include_usage: bool | None = None


_HONOURED = {name: row for name, row in SAMPLING.items() if row.http is not None}
if TYPE_CHECKING:
    _Honoured = BaseModel
else:
    _Honoured = create_model(
        "_Honoured",
        __config__=ConfigDict(extra="allow", strict=True, frozen=True),
        **{name: (setting(RequestRoute.CHAT, name), None) for name in _HONOURED},
    )


class _OpenAiRequest(_Honoured):
    """Fields shared by chats and completions, beside those of the table of sampling fields. null
    always means the default."""

    # Chats and completions have the same bounds.
    model: Annotated[str, bounded(RequestRoute.CHAT, "model")]
    n: Annotated[int, ranged(RequestRoute.CHAT, "n"), checked(RequestRoute.CHAT, "n")] | None = None
    stream: Annotated[bool, checked(RequestRoute.CHAT, "stream")] | None = None
    stream_options: (
        Annotated[StreamOptions, bounded(RequestRoute.CHAT, "stream_options")] | None
    ) = None
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
    priority: (
        Annotated[
            int, ranged(RequestRoute.CHAT, "priority"), checked(RequestRoute.CHAT, "priority")
        ]
        | None
    ) = None
    # Seconds, waiting included
    timeout: Annotated[float, ranged(RequestRoute.CHAT, "timeout")] | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _check_stream_options(self) -> None:
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        extra = self.stream_options.model_extra
        refuse_unsupported(extra, _STREAM_OPTIONS, at="stream_options.")

    @property
    def most_tokens(self) -> int | None:
        return getattr(self, "max_tokens")  # noqa: B009  (a field of the table)

    def _sampling(self, **own: Any) -> SamplingParams:
        """Return the fields of the table; `own`: those that the body spells differently."""
        given = {name: getattr(self, name) for name in _HONOURED}
        said = {name: _ours(name, value) for name, value in given.items() if value is not None}
        constraint = constraint_of({name: getattr(self, name) for name in CONSTRAINTS})
        return SamplingParams(**{**said, **constraint, **own})


def _ours(name: str, value: Any) -> Any:
    """Return a value of the body as the table's own."""
    if isinstance(value, list):
        return tuple(cast("list[object]", value))
    convert = _HONOURED[name].from_http
    return convert(value) if convert else value


class ChatMessage(BaseModel):
    """One message as received; `http_gateway.openai.chat` parses its content."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(RequestRoute.CHAT, "messages.role")]
    content: Annotated[object, bounded(RequestRoute.CHAT, "messages.content")] = None


class ChatRequest(_OpenAiRequest):
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
        refuse_unsupported(self.model_extra, _CHAT, _HARMLESS)
        self._check_stream_options()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        both = self.most_tokens and self.max_completion_tokens
        if both and self.most_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ: send only one", param="max_tokens"
            )

    def sampling(self) -> SamplingParams:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        most = self.max_completion_tokens or self.most_tokens
        return self._sampling(max_tokens=most, logprobs=logprobs)


Prompt = str | tuple[int, ...]


def read_prompts(value: object) -> object:
    """Normalise text, texts, token ids, or lists of token ids to a list of prompts.

    Raises ValueError for anything else.
    """
    prompts: object = [value] if isinstance(value, str) or _is_token_list(value) else value
    if not isinstance(prompts, list) or not all(
        isinstance(one, str) or _is_token_list(one) for one in cast("list[object]", prompts)
    ):
        raise ValueError("send text, a list of texts, token ids, or lists of token ids")
    return cast("list[object]", prompts)


def _is_token_list(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(type(one) is int and 0 <= one < 2**31 for one in cast("list[object]", value))


class CompletionRequest(_OpenAiRequest):
    """POST /v1/completions."""

    prompt: Annotated[
        list[str | list[int]],
        BeforeValidator(read_prompts),
        sized(RequestRoute.COMPLETIONS, "prompt", least=1),
        bounded(RequestRoute.COMPLETIONS, "prompt"),
    ]
    logprobs: (
        Annotated[
            int,
            ranged(RequestRoute.COMPLETIONS, "logprobs"),
            checked(RequestRoute.COMPLETIONS, "logprobs"),
        ]
        | None
    ) = None
    best_of: Annotated[int, checked(RequestRoute.COMPLETIONS, "best_of")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _COMPLETION, _HARMLESS)
        self._check_stream_options()
        if self.best_of not in (None, self.choices):
            raise UnsupportedParameter(
                "best_of is not supported: leave it out, or send the value of n", param="best_of"
            )
        if len(self.prompt) * self.choices > MAX_PROMPTS:
            raise InvalidRequest(
                f"{len(self.prompt)} prompts with n={self.choices} exceed {MAX_PROMPTS} choices "
                "per request: send fewer prompts",
                param="prompt",
            )

    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(p if isinstance(p, str) else tuple(p) for p in self.prompt)

    def sampling(self) -> SamplingParams:
        most = self.most_tokens or COMPLETION_MAX_TOKENS
        return self._sampling(max_tokens=most, logprobs=self.logprobs)
