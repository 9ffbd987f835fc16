"""OpenAI's completion request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from http_gateway.bounds import bounded, check_names, ranged, sized
from http_gateway.openai.shape import Shape
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import shortened
from sax.types import ReplyOptions, SamplingParams

MAX_PROMPTS = field(RequestRoute.COMPLETIONS, "prompt").count or 0  # prompts x n of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default

# Labels for the request; they do not change the answer.
_HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})

# Field -> the values besides null that change nothing. Any other value is refused.
_COMMON: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    # vLLM extensions that are not supported here
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "cache_salt": (),
}
_CHAT: dict[str, tuple[object, ...]] = {
    **_COMMON,
    "echo": (False,),  # a chat has no text of its own
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
    "response_format": ({"type": "text"},),
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
    "suffix": ("",),
    "response_format": ({"type": "text"},),
}
_STREAM_OPTIONS: dict[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
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


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


TokenId = Annotated[int, ranged(RequestRoute.CHAT, "stop_token_ids")]
StopText = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the counts so far, in every event


class _OpenAiRequest(BaseModel):
    """Fields shared by chats and completions. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    # Chats and completions have the same bounds.
    model: Annotated[str, bounded(RequestRoute.CHAT, "model")]
    n: Annotated[int, ranged(RequestRoute.CHAT, "n")] | None = None
    stream: bool | None = None
    stream_options: (
        Annotated[StreamOptions, bounded(RequestRoute.CHAT, "stream_options")] | None
    ) = None
    temperature: Annotated[float, ranged(RequestRoute.CHAT, "temperature")] | None = None
    top_p: Annotated[float, ranged(RequestRoute.CHAT, "top_p")] | None = None
    top_k: Annotated[int, ranged(RequestRoute.CHAT, "top_k")] | None = None  # -1 and 0: off
    max_tokens: Annotated[int, ranged(RequestRoute.CHAT, "max_tokens")] | None = None
    seed: Annotated[int, ranged(RequestRoute.CHAT, "seed")] | None = None
    stop: (
        Annotated[
            list[StopText],
            BeforeValidator(_one_or_many),
            sized(RequestRoute.CHAT, "stop"),
            bounded(RequestRoute.CHAT, "stop"),
        ]
        | None
    ) = None
    stop_token_ids: (
        Annotated[
            list[TokenId],
            sized(RequestRoute.CHAT, "stop_token_ids"),
            bounded(RequestRoute.CHAT, "stop_token_ids"),
        ]
        | None
    ) = None
    ignore_eos: bool | None = None
    priority: Annotated[int, ranged(RequestRoute.CHAT, "priority")] | None = None  # vLLM's
    # vLLM's, of the prompt and the reply
    prompt_logprobs: Annotated[int, ranged(RequestRoute.CHAT, "prompt_logprobs")] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: (
        Annotated[int, ranged(RequestRoute.CHAT, "truncate_prompt_tokens")] | None
    ) = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    # No tokenizer here puts spaces there, so both values give the same text.
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    def _check_stream_options(self) -> None:
        options = self.stream_options
        if options is None:
            return
        if not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        if options.continuous_usage_stats and not options.include_usage:
            raise InvalidRequest(
                "stream_options.continuous_usage_stats needs stream_options.include_usage: true",
                param="stream_options.continuous_usage_stats",
            )
        refuse_unsupported(options.model_extra, _STREAM_OPTIONS, at="stream_options.")

    def _check_reply(self, logprobs: int | None) -> None:
        """Raise InvalidRequest for parts of the reply that contradict the rest of the request."""
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest(
                "prompt_logprobs are not streamed: leave out stream, or use echo with logprobs",
                param="prompt_logprobs",
            )
        if self.return_tokens_as_token_ids and logprobs is None and self.prompt_logprobs is None:
            raise InvalidRequest(
                "return_tokens_as_token_ids renames the tokens of logprobs: ask for logprobs or "
                "prompt_logprobs, too",
                param="return_tokens_as_token_ids",
            )

    def _reply(self, prompt_logprobs: int | None, *, echo: bool = False) -> ReplyOptions:
        return ReplyOptions(
            echo=echo,
            prompt_logprobs=prompt_logprobs,
            return_token_ids=bool(self.return_token_ids),
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            add_special_tokens=self.add_special_tokens,
            skip_special_tokens=self.skip_special_tokens is not False,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
        )

    def _shape(self, best_of: int, echoed_tops: int | None = None) -> Shape:
        options = self.stream_options
        return Shape(
            n=self.choices,
            best_of=best_of,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            echoed_tops=echoed_tops,
            prompt_logprobs=self.prompt_logprobs,
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
        )

    def _sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=max_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )


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
        Annotated[int, ranged(RequestRoute.CHAT, "max_completion_tokens")] | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, ranged(RequestRoute.CHAT, "top_logprobs")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _CHAT, _HARMLESS)
        self._check_stream_options()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        both = self.max_tokens and self.max_completion_tokens
        if both and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ: send only one", param="max_tokens"
            )
        self._check_reply(self._tops)

    @property
    def _tops(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def sampling(self) -> SamplingParams:
        return self._sampling(self.max_completion_tokens or self.max_tokens, self._tops)

    def reply(self) -> ReplyOptions:
        return self._reply(self.prompt_logprobs)

    def shape(self) -> Shape:
        return self._shape(self.choices)


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
    max_tokens: Annotated[int, ranged(RequestRoute.COMPLETIONS, "max_tokens")] | None = None
    logprobs: Annotated[int, ranged(RequestRoute.COMPLETIONS, "logprobs")] | None = None
    best_of: Annotated[int, ranged(RequestRoute.COMPLETIONS, "best_of")] | None = None
    echo: bool | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _COMPLETION, _HARMLESS)
        self._check_stream_options()
        self._check_best_of()
        self._check_reply(self.logprobs)
        if len(self.prompt) * self.generated > MAX_PROMPTS:
            raise InvalidRequest(
                f"{len(self.prompt)} prompts with {self.generated} answers each exceed "
                f"{MAX_PROMPTS} answers per request: send fewer prompts",
                param="prompt",
            )

    def _check_best_of(self) -> None:
        if self.generated < self.choices:
            raise InvalidRequest(
                f"best_of is {self.best_of} and n is {self.choices}: generate at least as many "
                "answers as are returned",
                param="best_of",
            )
        if self.stream and self.generated > self.choices:
            raise InvalidRequest(
                "best_of chooses among whole answers, which cannot be streamed: leave out stream "
                "or best_of",
                param="best_of",
            )

    @property
    def generated(self) -> int:
        """Answers per prompt."""
        return self.choices if self.best_of is None else self.best_of

    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(p if isinstance(p, str) else tuple(p) for p in self.prompt)

    def sampling(self) -> SamplingParams:
        most = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self._sampling(most, self.logprobs)

    def reply(self) -> ReplyOptions:
        wanted = [tops for tops in (self._echoed_tops, self.prompt_logprobs) if tops is not None]
        return self._reply(max(wanted, default=None), echo=bool(self.echo))

    def shape(self) -> Shape:
        return self._shape(self.generated, self._echoed_tops)

    @property
    def _echoed_tops(self) -> int | None:
        return self.logprobs if self.echo else None
