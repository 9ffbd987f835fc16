"""OpenAI's replies: what was read of each choice, as one JSON body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NotRequired, Protocol, TypedDict

import msgspec

from http_gateway.openai.divided_text import DividedText, divided_by, finish_of
from http_gateway.openai.logprobs import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    shown_logprobs,
)
from http_gateway.openai.reply_schema import Shape
from http_gateway.sse import Feed, stop
from sax.errors import ReplicaLost
from sax.routed_experts import ExpertsOfTokens, RoutedExpertIds
from sax.types import AnswerFormat, HypothesisText, TokenChunk, TokenLogprob

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Head:
    """Leading fields of every event and body of one reply."""

    id: str
    created: int  # seconds since the epoch
    model: str  # as the client wrote it

    def fields(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


class WeightsOfTokens(TypedDict):
    """Tokens, one after the other, that weights of one version computed."""

    version: str | None  # null: not known, another replica began the answer
    tokens: int


def weights_of(chunk: TokenChunk) -> list[WeightsOfTokens]:
    return [{"version": run.version or None, "tokens": run.tokens} for run in chunk.weights]


@dataclass(slots=True)
class Transcript:
    """Output of one choice so far."""

    text: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    token_ids: list[int] = field(default_factory=list[int])
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    seed: int | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    schema_violation: str = ""
    weights: list[WeightsOfTokens] = field(default_factory=list[WeightsOfTokens])
    routed_experts: RoutedExpertIds | None = None
    score: float = 0.0  # sum of log-probabilities
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_token_ids: tuple[int, ...] = ()
    hypotheses: tuple[HypothesisText, ...] = ()  # of a beam search
    beam_score: float | None = None  # of one hypothesis
    shape: Shape = Shape()
    answer_format: AnswerFormat | None = None
    divided: DividedText | None = None  # the text in its parts, if it has any but content

    def add(self, chunk: TokenChunk) -> None:
        self.text.append(chunk.text)
        if chunk.answer_format is not None:
            self.answer_format = chunk.answer_format
            self.divided = divided_by(chunk.answer_format, self.shape)
        if self.divided is not None:
            self.divided.push(chunk.text)
            if chunk.finish_reason:
                self.divided.finish()
        self.logprobs.extend(chunk.logprobs)
        self.token_ids.extend(chunk.token_ids)
        self.prompt_logprobs.extend(chunk.prompt_logprobs)
        self.finish_reason, self.stop_reason = chunk.finish_reason, chunk.stop_reason
        self.prompt_tokens = chunk.prompt_tokens or self.prompt_tokens
        self.cached_tokens = chunk.cached_tokens or self.cached_tokens
        self.completion_tokens, self.score = chunk.completion_tokens, chunk.score
        self.reasoning_tokens = chunk.reasoning_tokens
        self.schema_violation = chunk.schema_violation
        self.weights = weights_of(chunk)
        self.routed_experts = chunk.routed_experts
        if chunk.hypotheses:
            self.hypotheses = chunk.hypotheses
            self.completion_tokens = sum(len(each.token_ids) for each in chunk.hypotheses)
        if chunk.seed is not None:
            self.seed, self.prompt_token_ids = chunk.seed, chunk.prompt_token_ids

    def searched(self, n: int) -> list[Transcript]:
        """Return the n best hypotheses of a beam search, each as a choice."""
        return [
            replace(
                self,
                text=[each.text],
                token_ids=[*each.token_ids],
                completion_tokens=len(each.token_ids),
                stop_reason=each.stop_token_id,
                beam_score=each.score,
                divided=divided_by(self.answer_format, self.shape, each.text),
            )
            for each in self.hypotheses[:n]
        ]

    @property
    def mean_logprob(self) -> float:
        return self.score / max(self.completion_tokens, 1)


def best(transcripts: Sequence[Transcript], shape: Shape) -> list[Transcript]:
    """Return the n answers of each prompt with the highest mean log-probability, best first.

    As generated if all of them are returned.
    """
    if shape.beams:
        return [each for transcript in transcripts for each in transcript.searched(shape.n)]
    if shape.best_of == shape.n:
        return [*transcripts]
    groups = (
        transcripts[start : start + shape.best_of]
        for start in range(0, len(transcripts), shape.best_of)
    )
    return [
        each
        for group in groups
        for each in sorted(group, key=lambda one: -one.mean_logprob)[: shape.n]
    ]


class Counted(Protocol):
    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def reasoning_tokens(self) -> int: ...


class Usage(TypedDict):
    """OpenAI's token counts of one reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: NotRequired[dict[str, int]]  # of an answer that reasons


def usage(choices: Sequence[Counted], n: int) -> Usage:
    """Sum the tokens; a prompt counts once for its n choices, as the first of them found it."""
    cached = sum(choice.cached_tokens for choice in choices[::n])
    prompt = sum(choice.prompt_tokens for choice in choices[::n])
    completion = sum(choice.completion_tokens for choice in choices)
    reasoning = sum(choice.reasoning_tokens for choice in choices)
    return usage_of(prompt, completion, cached, reasoning)


def usage_of(prompt: int, completion: int, cached: int, reasoning: int = 0) -> Usage:
    counts: Usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if reasoning:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def chat_body(head: Head, transcripts: Sequence[Transcript], counts: Usage, shape: Shape) -> bytes:
    body = head.fields("chat.completion")
    body["choices"] = [_chat_choice(i, each, shape) for i, each in enumerate(transcripts)]
    return _encode({**body, "usage": counts, **_of_prompt(transcripts[0], shape)})


def _chat_choice(index: int, transcript: Transcript, shape: Shape) -> dict[str, object]:
    content = {"content": "".join(transcript.text)}
    if transcript.divided is not None:
        content = transcript.divided.message()
    logprobs = transcript.logprobs
    return {
        "index": index,
        "message": {"role": "assistant", **content, "refusal": None},
        "logprobs": chat_logprobs(logprobs, shape) if logprobs else None,
        **_ending(transcript, shape),
    }


def completion_body(
    head: Head, transcripts: Sequence[Transcript], counts: Usage, shape: Shape
) -> bytes:
    body = head.fields("text_completion")
    body["choices"] = [_completion_choice(i, each, shape) for i, each in enumerate(transcripts)]
    return _encode({**body, "usage": counts})


def _completion_choice(index: int, transcript: Transcript, shape: Shape) -> dict[str, object]:
    logprobs = shown_logprobs(transcript.prompt_logprobs, transcript.logprobs, shape)
    return {
        "index": index,
        "text": "".join(transcript.text),
        "logprobs": completion_logprobs(logprobs, shape) if logprobs else None,
        **_ending(transcript, shape),
        **_of_prompt(transcript, shape),
    }


def _ending(transcript: Transcript, shape: Shape) -> dict[str, object]:
    called = transcript.divided is not None and transcript.divided.calls
    ending: dict[str, object] = {
        "finish_reason": finish_of(transcript.finish_reason, called=called),
        "stop_reason": transcript.stop_reason,
        "seed": transcript.seed,
    }
    if transcript.beam_score is not None:
        ending["score"] = transcript.beam_score
    if transcript.schema_violation:
        ending["schema_violation"] = transcript.schema_violation
    if transcript.weights:
        ending["weights"] = transcript.weights
    if transcript.routed_experts is not None:
        ending["routed_experts"] = transcript.routed_experts.as_json()
    return ending | ({"token_ids": transcript.token_ids} if shape.token_ids else {})


def _of_prompt(transcript: Transcript, shape: Shape) -> dict[str, object]:
    """Return what was asked for of the prompt: once for a chat, in each choice of a completion."""
    asked: dict[str, object] = {}
    if shape.prompt_logprobs is not None:
        asked["prompt_logprobs"] = prompt_logprobs(transcript.prompt_logprobs, shape)
    if shape.token_ids:
        asked["prompt_token_ids"] = transcript.prompt_token_ids
    return asked


# The types of the replies, which describe them in /openapi.json. Events of streams are encoded by
# hand (events.py); tests check each against its type.


class ModelCard(TypedDict):
    """One published model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: NotRequired[str]  # of an adapter: its base
    max_model_len: NotRequired[int]  # tokens of prompt and answer, once a replica is ready
    replicas: int
    ready_replicas: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class NamedLogprob(TypedDict):
    token: str
    logprob: float | None
    bytes: list[int]


class ChosenLogprob(NamedLogprob):
    top_logprobs: list[NamedLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChosenLogprob]
    refusal: None


class PromptLogprob(TypedDict):
    logprob: float | None
    rank: int
    decoded_token: str


class CompletionLogprobs(TypedDict):
    """Four parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class ReplyHead(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str | None


class ChoiceEnd(TypedDict):
    index: int
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    seed: NotRequired[int | None]
    score: NotRequired[float]  # of a hypothesis of a beam search
    # How a finished answer breaks its schema, by what no grammar could hold
    schema_violation: NotRequired[str]
    # Of a model whose weights were changed in place
    weights: NotRequired[list[WeightsOfTokens]]
    routed_experts: NotRequired[ExpertsOfTokens]
    token_ids: NotRequired[list[int]]


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None


class ChatChoice(ChoiceEnd):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(ReplyHead):
    """A whole reply to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    prompt_token_ids: NotRequired[list[int]]


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]


class ChatEventChoice(ChoiceEnd):
    delta: ChatDelta
    logprobs: ChatLogprobs | None


class ChatCompletionEvent(ReplyHead):
    """An event of a streamed reply to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatEventChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChoice(ChoiceEnd):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(ReplyHead):
    """A whole reply to prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionEvent(ReplyHead):
    """An event of a streamed reply to prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class InputUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class ListHead(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: InputUsage


# Reads answers whole, for replies that are not streamed.


async def read_all(
    feeds: Sequence[Feed[TokenChunk]],
    transcripts: Sequence[Transcript],
    on_first: Callable[[], None],
) -> None:
    """Read every choice to its end; the first failure cancels the others."""
    waiting = [on_first]
    tasks = [
        asyncio.create_task(_read(feed, transcript, waiting))
        for feed, transcript in zip(feeds, transcripts, strict=True)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(*tasks)


async def _read(
    feed: Feed[TokenChunk], transcript: Transcript, waiting: list[Callable[[], None]]
) -> None:
    def add(chunk: TokenChunk) -> None:
        if waiting:
            waiting.pop()()
        transcript.add(chunk)

    await feed(add)
    if transcript.finish_reason is None:
        raise ended_early()


def ended_early() -> ReplicaLost:
    """Return the error of an answer whose last chunk has no finish reason."""
    return ReplicaLost("the replica ended the stream without a finish reason; retry")
