"""A chat as the text that its model's template makes of it."""

from __future__ import annotations

from dataclasses import dataclass

from model_server.loading.loaded import Loaded
from model_server.text.text_length import check_messages
from sax.errors import InvalidRequest
from sax.types import Message

Prompt = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """Text for `encode_chat`: control tokens count, except where users wrote them."""

    text: str


def is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and any(isinstance(part, Message) for part in prompt[:1])


async def rendered(prompt: Prompt, loaded: Loaded) -> Prompt | RenderedChat:
    """Render a prompt of messages; others are returned as they are.

    Raises InvalidRequest and what `ChatTemplate.rendered` raises.
    """
    if isinstance(prompt, str):
        return prompt
    messages = [part for part in prompt if isinstance(part, Message)]
    if not messages:
        return prompt
    if loaded.chat_template is None:
        raise InvalidRequest(
            "this model has no chat template: send the prompt as text instead of messages",
            param="messages",
        )
    check_messages(messages, loaded.tokenizer, loaded.runner.limits.max_context)
    return RenderedChat(await loaded.chat_template.rendered(messages))
