"""Ollama's replies: what is encoded, and described in /openapi.json."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType


class OllamaFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    index: int


class OllamaCall(msgspec.Struct):
    id: str
    function: OllamaFunction


class OllamaMessage(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaReply(msgspec.Struct, kw_only=True):
    """A reply, or a line of one that is streamed; the last line has counts and durations.

    Durations are in nanoseconds: in all, until the cell was asked, until the first token, and from
    then on.
    """

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatReply(OllamaReply, kw_only=True):
    message: OllamaMessage


class OllamaTextReply(OllamaReply, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaDetails(TypedDict):
    """Details of a model: what the cell knows of it."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """A published model; the cell does not record its size, nor when it was published."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: NotRequired[str]  # of one that is loaded, with size_vram
    size_vram: NotRequired[int]


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaModelInfo(TypedDict):
    """One model; `capabilities` as its replicas tell."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVectors(TypedDict):
    """The vector of each input."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(TypedDict):
    embedding: list[float]


class OllamaVersion(TypedDict):
    version: str
