"""vLLM's requests to turn text into tokens and back, and the treatment of each field."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.chat import to_messages
from http_gateway.openai.chat_schema import ChatFields
from http_gateway.openai.prompts import messages_schema
from http_gateway.openai.schema import ChatMessage, refuse_unsupported
from http_gateway.openapi import RequestBody, Schema
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.sampling import INT32
from sax.types import ChatOptions, Message

_TEXT, _TOKENS = RequestRoute.TEXT_TO_TOKENS, RequestRoute.TOKENS_TO_TEXT
_LABELS = frozenset({"user", "metadata", "safety_identifier"})
_RENDERED = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
# Field -> the values besides null that change nothing. Any other value is refused.
_OF_CHATS: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}


class TokenizeBody(BaseModel):
    """POST /tokenize: a prompt or messages. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_TEXT, "model")] | None = None  # the only one
    prompt: Annotated[str, bounded(_TEXT, "prompt"), Field(min_length=1)] | None = None
    messages: (
        Annotated[list[ChatMessage], sized(_TEXT, "messages", least=1), bounded(_TEXT, "messages")]
        | None
    ) = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[dict[str, object]], bounded(_TEXT, "tools")] | None = None
    chat_template_kwargs: (
        Annotated[dict[str, object], bounded(_TEXT, "chat_template_kwargs")] | None
    ) = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    timeout: Annotated[float, ranged(_TEXT, "timeout")] | None = None

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        given = {name: getattr(self, name) for name in _RENDERED}
        for name, value in given.items():
            if value is not None and self.messages is None:
                raise InvalidRequest(f"{name} is for a chat: send messages", param=name)
        return replace(ChatFields.model_construct(**given).options, divided=False)

    def text(self) -> str | tuple[Message, ...]:
        """Return the prompt. Raises InvalidRequest, or UnsupportedParameter for a field that cannot
        be honoured."""
        refuse_unsupported(self.model_extra, _OF_CHATS, _LABELS)
        if self.prompt is not None and self.messages is None:
            return self.prompt
        if self.messages is not None and self.prompt is None:
            return to_messages(self.messages)
        raise InvalidRequest("send either prompt, a text, or messages", param="prompt")


class DetokenizeBody(BaseModel):
    """POST /detokenize: token ids."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_TOKENS, "model")] | None = None  # the only one
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32)]], bounded(_TOKENS, "tokens"), WHOLE
    ]
    timeout: Annotated[float, ranged(_TOKENS, "timeout")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {}, _LABELS)


def _only(name: str, kind: str) -> Schema:
    return {"properties": {name: {"type": kind}}, "required": [name]}


TOKENIZE = RequestBody(
    model=TokenizeBody,
    route=_TEXT,
    unchanged=_OF_CHATS,
    labels=_LABELS,
    replaced={"messages": messages_schema(_TEXT, optional=True)},
    rules=({"oneOf": [_only("prompt", "string"), _only("messages", "array")]},),
)
DETOKENIZE = RequestBody(model=DetokenizeBody, route=_TOKENS, labels=_LABELS)
