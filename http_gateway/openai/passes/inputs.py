"""Inputs of texts and images as clients send them: an image as at Jina ({"image": ...}), content
parts as at Cohere, OpenAI and vLLM, and whole messages as at vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from http_gateway.backend import Backend
from http_gateway.bounds import whole
from http_gateway.images.image_link import ImageLink, read_url
from http_gateway.openai.content_parts import content_of
from http_gateway.openai.prompts import seen_part_schema
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import Schema
from sax.chat import Message
from sax.errors import InvalidRequest
from sax.fields.field import RequestField, RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.passes import ChatInput

Entry = str | ChatInput
_ROLES = ("system", "user", "assistant")
_FORMS = "send text, or an object with text and image, or with content"
_IMAGE = field(RequestRoute.CHAT, "messages.content.image_url")
# What clients write who end a chat with an empty message of the assistant.
CHAT_EXTRA: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": (),
    "mm_processor_kwargs": (),
}


def read_entry(value: object, at: str, row: RequestField) -> Entry:
    """Return a text, or texts and images. Raises InvalidRequest, UnsupportedParameter."""
    if isinstance(value, str):
        row.check_text(value, at)
        return value
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at}: {_FORMS}", param=at)
    fields = dict(cast("Mapping[str, object]", value))
    if "type" in fields:
        content = content_of([fields], at, "user")
    elif "content" in fields:
        content = content_of(fields.pop("content"), f"{at}.content", "user")
        refuse_unsupported(fields, {}, at=f"{at}.")
    else:
        content = _image_and_text(fields, at, row)
    return content if isinstance(content, str) else ChatInput.of(*content)


def _image_and_text(
    fields: dict[str, object], at: str, row: RequestField
) -> str | tuple[str | ImageLink, ...]:
    text, image = fields.pop("text", None), fields.pop("image", None)
    refuse_unsupported(fields, {}, at=f"{at}.")
    if text is not None:
        if not isinstance(text, str):
            raise InvalidRequest(f"{at}.text: send a string", param=f"{at}.text")
        row.check_text(text, f"{at}.text")
    if image is None:
        if not isinstance(text, str):
            raise InvalidRequest(f"{at}: {_FORMS}", param=at)
        return text
    if isinstance(image, str) and not image.startswith(("data:", "http:", "https:")):
        image = f"data:image/png;base64,{image}"  # the decoder looks at the file itself
    link = read_url(image, f"{at}.image", at, _IMAGE)
    return (link, text) if isinstance(text, str) and text else (link,)


def entries_of(route: RequestRoute, name: str) -> Callable[[object], object]:
    """Return a reader of one entry or a list of them; an object with nothing but a list `content`
    stands for one entry per part, as at vLLM. It raises InvalidRequest.
    """
    row = field(route, name)

    def read(value: object) -> object:
        if isinstance(value, dict):
            given = cast("dict[str, object]", value)
            parts = given.get("content") if len(given) == 1 else None
            value = cast("list[object]", parts) if isinstance(parts, list) else [given]
        many: object = [value] if isinstance(value, str) else value
        if not isinstance(many, list):
            raise InvalidRequest(f"{name}: {_FORMS}, or a list of them", param=name)
        listed = cast("list[object]", many)
        row.check_count(len(listed))
        return [read_entry(each, f"{name}[{index}]", row) for index, each in enumerate(listed)]

    return read


def inputs_of(route: RequestRoute, texts: Callable[[object], object]) -> Callable[[object], object]:
    """Return a reader of `input`: entries, of which some have images, or what `texts` reads, texts
    and token ids. It raises what `texts` raises, and InvalidRequest.
    """
    row = field(route, "input")

    def read(value: object) -> object:
        many: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
        if not any(isinstance(each, dict) for each in many):
            made = texts(whole(cast("object", value)))
            row.check(made)
            ids = cast("list[str | list[int]]", made)
            return [each if isinstance(each, str) else tuple(each) for each in ids]
        row.check_count(len(many))
        return [read_entry(each, f"input[{index}]", row) for index, each in enumerate(many)]

    return read


def read_messages(value: object) -> ChatInput:
    """Return a chat that is one input. Raises InvalidRequest, UnsupportedParameter."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages: send a list of messages", param="messages")
    listed = cast("list[object]", value)
    field(RequestRoute.EMBEDDINGS, "messages").check_count(len(listed), "messages")
    return ChatInput(tuple(_message(each, f"messages[{i}]") for i, each in enumerate(listed)))


def _message(value: object, at: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at}: send an object with role and content", param=at)
    fields = dict(cast("Mapping[str, object]", value))
    role, content = fields.pop("role", None), fields.pop("content", None)
    refuse_unsupported(fields, {}, at=f"{at}.")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{at}.role is {quoted(role)}: send one of {', '.join(_ROLES)}", param=f"{at}.role"
        )
    return Message(str(role), content_of(content, f"{at}.content", str(role)))


async def with_linked_images(backend: Backend, inputs: Sequence[Any], param: str) -> list[Any]:
    """Return inputs with the images that they link to, bounded together.

    Raises InvalidRequest naming an image that cannot be had, or `param` for too many.
    """
    chats = [each for each in inputs if isinstance(each, ChatInput)]
    if not chats:
        return [*inputs]
    messages = tuple(message for chat in chats for message in chat.messages)
    found = iter(await backend.with_images(messages, param))
    return [
        replace(each, messages=tuple(islice(found, len(each.messages))))
        if isinstance(each, ChatInput)
        else each
        for each in inputs
    ]


def entry_schemas(row: RequestField) -> list[Schema]:
    """Return the schemas of an entry that is a text, or texts and images."""
    text: Schema = {"type": "string", "maxLength": row.bytes}
    part = seen_part_schema()
    image = part["anyOf"][1]["properties"]["image_url"]["properties"]["url"]
    both: Schema = {
        "type": "object",
        "properties": {"text": text, "image": image},
        "anyOf": [{"required": ["text"]}, {"required": ["image"]}],
        "additionalProperties": False,
    }
    content: Schema = {"anyOf": [text, {"type": "array", "items": part, "minItems": 1}]}
    parts: Schema = {
        "type": "object",
        "properties": {"content": content},
        "required": ["content"],
        "additionalProperties": False,
    }
    return [text, both, parts, part]


def entries_schema(route: RequestRoute, name: str) -> Schema:
    """Return the schema of one entry or several."""
    row = field(route, name)
    entry: Schema = {"anyOf": entry_schemas(row)}
    many: Schema = {"type": "array", "items": entry, "minItems": 1, "maxItems": row.count}
    return {"anyOf": [*entry_schemas(row), many]}


def inputs_schema(route: RequestRoute, prompts: Schema) -> Schema:
    """Return the schema of `input`; prompts: of texts and token ids."""
    return {"anyOf": [*prompts["anyOf"], *entries_schema(route, "input")["anyOf"][1:]]}
