"""A completion: its body, whose prompts may have several answers, and its stream events."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

import msgspec
from pydantic import BeforeValidator

from http_gateway.bounds import bounded, checked, ranged, sized, whole
from http_gateway.openai.events import Events
from http_gateway.openai.logprobs import completion_logprobs, shown_logprobs
from http_gateway.openai.reply import Head
from http_gateway.openai.reply_schema import Shape, check_beams
from http_gateway.openai.schema import OpenAiRequest
from http_gateway.openai.unsupported import LABELS, refuse_unsupported
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.types import ReplyOptions, SamplingParams, TokenChunk

MAX_PROMPTS = field(RequestRoute.COMPLETIONS, "prompt").count or 0  # prompts x n of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default

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


class CompletionRequest(OpenAiRequest):
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
    suffix: Annotated[str, bounded(RequestRoute.COMPLETIONS, "suffix")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {}, LABELS)
        self._check_stream_options()
        self._check_thinking()
        self._check_best_of()
        self._check_suffix()
        check_beams(self, self.generated)
        self._check_reply(self.logprobs)
        if len(self.prompt) * self.generated > MAX_PROMPTS:
            raise InvalidRequest(
                f"{len(self.prompt)} prompts with {self.generated} answers each exceed "
                f"{MAX_PROMPTS} answers per request: send fewer prompts",
                param="prompt",
            )

    def _check_suffix(self) -> None:
        if self.suffix and not all(isinstance(each, str) for each in self.prompt):
            raise InvalidRequest("suffix goes with prompts that are texts", param="suffix")

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
        made = self._reply(max(wanted, default=None), echo=bool(self.echo))
        return replace(made, suffix=self.suffix or None)

    def shape(self) -> Shape:
        return self._shape(self.generated, self._echoed_tops)

    @property
    def _echoed_tops(self) -> int | None:
        return self.logprobs if self.echo else None


_encode = msgspec.json.Encoder().encode


class CompletionEvents(Events):
    """text_completion events: texts, the last with the finish reason."""

    def __init__(self, head: Head, index: int, shape: Shape) -> None:
        super().__init__(head, "text_completion", index, shape)
        self._prefix = self._before + b'"text":'
        self._suffix = b',"logprobs":null,"finish_reason":null' + self._after

    def __call__(self, chunk: TokenChunk) -> bytes:
        if self._seen(chunk) and not chunk.prompt_logprobs:
            return self._prefix + _encode(chunk.text) + self._suffix if chunk.text else b""
        entries = shown_logprobs(chunk.prompt_logprobs, chunk.logprobs, self._shape)
        ids = self._token_ids(chunk) if chunk.token_ids else b""
        if not (chunk.text or entries or chunk.finish_reason or ids):
            return b""
        logprobs = completion_logprobs(entries, self._shape) if entries else None
        return self._event(
            b'"text":', _encode(chunk.text),
            b',"logprobs":', _encode(logprobs),
            self._ending(chunk), ids, self._prompt_ids(chunk),
            chunk=chunk,
        )  # fmt: skip
