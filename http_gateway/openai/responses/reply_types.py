"""Types of the replies of /v1/responses, for their description."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseItem(TypedDict):
    """A message, reasoning, a call of a function, or its output."""

    id: str
    type: Literal["message", "reasoning", "function_call", "function_call_output"]
    status: str


class ResponseFault(TypedDict):
    code: str
    message: str


class ResponseBody(TypedDict):
    """An answer, and what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[ResponseItem]
    usage: ResponseUsage | None
    error: ResponseFault | None
    incomplete_details: dict[str, str] | None
    store: bool
    previous_response_id: str | None
    instructions: str | None
    tools: list[dict[str, Any]]
    metadata: dict[str, str]


class ResponseStreamEvent(TypedDict):
    """An event; its other fields go with its type."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseBody]


class ResponseItemList(TypedDict):
    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool
