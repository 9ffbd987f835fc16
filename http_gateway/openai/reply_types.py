"""Types of the replies of OpenAI's and vLLM's routes, for their description.

Replies are encoded elsewhere, by hand where a token counts; tests check each against its type.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from http_gateway.openai.reply import Usage


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


class EmbeddingEntry(TypedDict):
    """The vector of one input: numbers, or little-endian f32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: InputUsage


class ListHead(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: InputUsage


class PooledEntry(TypedDict):
    """The vector of one input: numbers, or little-endian f32 in base64."""

    object: Literal["pooling"]
    index: int
    data: list[float] | str


class PooledList(ListHead):
    data: list[PooledEntry]


class ScoreEntry(TypedDict):
    object: Literal["score"]
    index: int
    score: float


class ScoreList(ListHead):
    data: list[ScoreEntry]


class ClassEntry(TypedDict):
    """The likeliest label of one input, and the score of each label."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(ListHead):
    data: list[ClassEntry]


class RankedText(TypedDict):
    text: str


class RankedEntry(TypedDict):
    index: int
    document: NotRequired[RankedText]
    relevance_score: float


class RankedList(TypedDict):
    """Documents, best first."""

    id: str
    model: str
    results: list[RankedEntry]
    usage: InputUsage


class TokenList(TypedDict):
    """The tokens of a prompt as the model reads it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokensText(TypedDict):
    """The text of tokens, control tokens written out."""

    prompt: str
