"""OpenAI's completion request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from http_gateway import modes
from http_gateway.bounds import bounded, check_names, checked, ranged, setting, sized, whole
from http_gateway.openai.chat_schema import ChatFields
from http_gateway.openai.constraint import CONSTRAINTS, constraint_of
from http_gateway.openai.reply_schema import ReplyFields
from http_gateway.openai.shape import Shape
from sax.client.routing.affinity import current_session
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.sampling import MOST_BEAMS, SAMPLING
from sax.fields.table import field
from sax.format import shortened
from sax.types import ReplyOptions, SamplingParams

_ONLY = {"length_penalty": 1.0, "early_stopping": False}  # and what changes nothing

MAX_PROMPTS = field(RequestRoute.COMPLETIONS, "prompt").count or 0  # prompts x n of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default

# Labels for the request; they do not change the answer.
_HARMLESS = frozenset({"metadata", "safety_identifier"})
# Hints of a chat that may save time elsewhere, and never change an answer.
_CHAT_HARMLESS = _HARMLESS | {"prediction", "prompt_cache_options", "prompt_cache_retention"}
TIERS = ("auto", "default", "flex", "scale", "priority")  # here all are served alike

# Field -> the values besides null that change nothing. Any other value is refused.
_CHAT: dict[str, tuple[object, ...]] = {
    "echo": (False,),  # a chat has no text of its own
    "audio": (),
    "function_call": ("none", "auto"),  # without functions
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "service_tier": TIERS,
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
}
_COMPLETION: dict[str, tuple[object, ...]] = {
    "suffix": ("",),
}
_STREAM_OPTIONS: dict[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
}


def refuse_unsupported(
    extra: Mapping[str, object] | None,
    no_op: Mapping[str, tuple[object, ...]],
    harmless: frozenset[str] = frozenset(),
    at: str = "",
    route: RequestRoute = RequestRoute.CHAT,
) -> None:
    """Raise UnsupportedParameter for the first field that could not be honoured.

    `no_op`: for each known field, the values that change nothing and so are accepted. `route`: of
    the harmless fields' bounds.
    """
    if not extra:
        return
    check_names(extra, at)
    for name, value in extra.items():
        if name in harmless:
            field(route, name).check(value, at + name)
            continue
        if name in no_op and _changes_nothing(value, no_op[name]):
            continue
        path = at + shortened(name)
        if name not in no_op and modes.ignored(path):
            continue
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


_HONOURED = {name: row for name, row in SAMPLING.items() if row.http is not None}
if TYPE_CHECKING:
    SamplingFields = BaseModel
else:
    SamplingFields = create_model(
        "SamplingFields",
        __config__=ConfigDict(extra="allow", strict=True, frozen=True),
        **{name: (setting(RequestRoute.CHAT, name), None) for name in _HONOURED},
    )


class _OpenAiRequest(ReplyFields, SamplingFields):
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
        refuse_unsupported(options.model_extra, _STREAM_OPTIONS, at="stream_options.")

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

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(RequestRoute.CHAT, "messages.role")]
    content: Annotated[object, bounded(RequestRoute.CHAT, "messages.content")] = None


class ChatRequest(ChatFields, _OpenAiRequest):
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
        refuse_unsupported(self.model_extra, _CHAT, _CHAT_HARMLESS)
        self.options  # noqa: B018  (checks its fields)
        self._check_stream_options()
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


Prompt = str | tuple[int, ...]


def read_prompts(value: object) -> object:
    """Normalise text, texts, token ids, or lists of token ids to a list of prompts.

    Raises ValueError for anything else.
    """
    if isinstance(value, str) or _is_token_list(value):
        return [value]
    prompts = value
    if isinstance(value, list):
        prompts = [whole(one) for one in cast("list[object]", value)]
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
    best_of: (
        Annotated[
            int,
            ranged(RequestRoute.COMPLETIONS, "best_of"),
            checked(RequestRoute.COMPLETIONS, "best_of"),
        ]
        | None
    ) = None
    echo: Annotated[bool, checked(RequestRoute.COMPLETIONS, "echo")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _COMPLETION, _HARMLESS)
        self._check_stream_options()
        self._check_best_of()
        check_beams(self, self.generated)
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
        most = COMPLETION_MAX_TOKENS if self.most_tokens is None else self.most_tokens
        beams = self.generated if self.use_beam_search else 0
        return self._sampling(max_tokens=most, logprobs=self.logprobs, beam_size=beams)

    def reply(self) -> ReplyOptions:
        wanted = [tops for tops in (self._echoed_tops, self.prompt_logprobs) if tops is not None]
        return self._reply(max(wanted, default=None), echo=bool(self.echo))

    def shape(self) -> Shape:
        return self._shape(self.generated, self._echoed_tops)

    @property
    def _echoed_tops(self) -> int | None:
        return self.logprobs if self.echo else None


# For the API's description: fields that must hold a value that changes nothing, and labels.
CHAT_UNCHANGED, COMPLETION_UNCHANGED, LABELS = _CHAT, _COMPLETION, _HARMLESS
CHAT_LABELS = _CHAT_HARMLESS
STREAM_OPTIONS_UNCHANGED = _STREAM_OPTIONS


def check_beams(body: ReplyFields, width: int) -> None:
    """Raise InvalidRequest for fields that contradict a beam search, or need one.

    width: answers generated per prompt.
    """
    if not body.use_beam_search:
        for name, unchanged in _ONLY.items():
            if getattr(body, name) not in (None, unchanged):
                raise InvalidRequest(
                    f"{name} is {getattr(body, name)} and there is no beam search: leave it out, "
                    "or send use_beam_search: true",
                    param=name,
                )
        return
    if body.stream:
        raise InvalidRequest(
            "a beam search has whole answers, which cannot be streamed: leave out stream or "
            "use_beam_search",
            param="stream",
        )
    if width > MOST_BEAMS:
        raise InvalidRequest(
            f"best_of is {width}: a beam search has at most {MOST_BEAMS} beams", param="best_of"
        )
