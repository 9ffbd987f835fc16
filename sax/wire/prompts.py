"""Codec for prompts: texts, token ids and chats, in requests and to tokenize."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from sax.chat import PLAIN_CHAT, Content, Image, Sound, ToolChoice, Video
from sax.errors import InvalidRequest
from sax.proto import tokens_pb2
from sax.types import ChatOptions, Message, Tool, ToolCall

Prompt = str | tuple[int, ...] | tuple[Message, ...]
_TURN = ("role", "name", "tool_call_id", "reasoning")  # texts of a message


def encode_tokenize(
    model_id: str,
    prompt: str | tuple[Message, ...],
    add_special_tokens: bool | None = None,
    chat: ChatOptions = PLAIN_CHAT,
    *,
    token_texts: bool = False,
) -> tokens_pb2.TokenizeRequest:
    """Encode a text or chat to tokenize. Raises InvalidRequest."""
    msg = tokens_pb2.TokenizeRequest(token_texts=token_texts)
    if add_special_tokens is not None:
        msg.add_special_tokens = add_special_tokens
    put(msg, "model_key", model_id, "model_id")
    if isinstance(prompt, str):
        put(msg, "text", prompt, "prompt")
    else:
        put_chat(msg.chat, prompt, chat)
    return msg


def decode_tokenize(
    msg: tokens_pb2.TokenizeRequest,
) -> tuple[str, str | tuple[Message, ...], bool | None, ChatOptions]:
    """Return the model, the prompt, `add_special_tokens` and the options of a chat; `token_texts`
    stays in the message."""
    special = msg.add_special_tokens if msg.HasField("add_special_tokens") else None
    if msg.WhichOneof("prompt") == "chat":
        return msg.model_key, _decode_chat(msg.chat), special, decode_options(msg.chat)
    return msg.model_key, msg.text, special, PLAIN_CHAT


def encode_detokenize(model_id: str, ids: Iterable[int]) -> tokens_pb2.DetokenizeRequest:
    """Encode token ids to turn into text. Raises InvalidRequest."""
    msg = tokens_pb2.DetokenizeRequest()
    put(msg, "model_key", model_id, "model_id")
    extend(msg.ids, ids, "tokens")
    return msg


def decode_detokenize(msg: tokens_pb2.DetokenizeRequest) -> tuple[str, tuple[int, ...]]:
    return msg.model_key, tuple(msg.ids)


def put(msg: ProtoMessage, field: str, value: Any, param: str | None = None) -> None:
    """Set a scalar field. Raises InvalidRequest naming the request's field."""
    try:
        setattr(msg, field, value)
    except (ValueError, TypeError) as exc:
        raise _misfit(param or field, exc) from exc


def extend(repeated: Any, values: Iterable[Any], param: str) -> None:
    try:
        repeated.extend(values)
    except (ValueError, TypeError) as exc:
        raise _misfit(param, exc) from exc


def update(mapping: Any, values: Mapping[Any, Any], param: str) -> None:
    try:
        mapping.update(values)
    except (ValueError, TypeError) as exc:
        raise _misfit(param, exc) from exc


def _misfit(param: str, exc: Exception) -> InvalidRequest:
    return InvalidRequest(f"{param} cannot be sent: {exc}", param=param)


def put_prompt(msg: tokens_pb2.Generate, prompt: Prompt, chat: ChatOptions) -> None:
    if isinstance(prompt, str):
        put(msg, "text", prompt, "prompt")
    elif prompt and isinstance(prompt[0], Message):
        put_chat(msg.chat, prompt, chat)
    else:
        msg.tokens.SetInParent()
        extend(msg.tokens.ids, prompt, "prompt")


def put_chat(chat: tokens_pb2.Chat, messages: Iterable[Any], options: ChatOptions) -> None:
    chat.SetInParent()
    put_messages(chat.messages, messages)
    if options == PLAIN_CHAT:
        return
    for tool in options.tools:
        _put_fields(chat.tools.add(), tool, ("name", "description", "parameters"), "tools")
        chat.tools[-1].strict = tool.strict
    _put_fields(chat, options, ("tool_choice", "tool_name", "chat_template_kwargs"), "")
    extend(chat.allowed_tools, options.allowed_tools, "tool_choice")
    chat.one_tool_call = not options.parallel_tool_calls
    chat.add_generation_prompt = options.add_generation_prompt
    chat.continue_final_message = options.continue_final_message
    chat.divided = options.divided


def put_messages(turns: Any, messages: Iterable[Any]) -> None:
    """Encode messages into a repeated field. Raises InvalidRequest."""
    for message in messages:
        turn = turns.add()
        for name in _TURN:
            if value := getattr(message, name):
                put(turn, name, value, f"messages.{name}")
        _put_content(turn, message.content)
        for call in message.tool_calls:
            _put_fields(turn.tool_calls.add(), call, ("id", "name", "arguments"), "tool_calls")


_KINDS: Mapping[type[Image], str] = {Sound: "sound", Video: "video"}


def _put_content(turn: tokens_pb2.Message, content: Content) -> None:
    if isinstance(content, str):
        put(turn, "content", content, "messages.content")
        return
    for part in content:
        if isinstance(part, str):
            put(turn.parts.add(), "text", part, "messages.content")
        else:
            added = turn.parts.add()
            medium = getattr(added, _KINDS.get(type(part), "image"))
            medium.SetInParent()
            names = ("data", "name", "heard") if isinstance(part, Video) else ("data", "name")
            _put_fields(medium, part, names, "messages.content")


def _put_fields(msg: ProtoMessage, value: Any, names: Iterable[str], at: str) -> None:
    for name in names:
        put(msg, name, getattr(value, name), f"{at}.{name}" if at else name)


def decode_prompt(msg: tokens_pb2.Generate) -> Prompt:
    match msg.WhichOneof("prompt"):
        case "tokens":
            return tuple(msg.tokens.ids)
        case "chat":
            return _decode_chat(msg.chat)
        case _:
            return msg.text


def _decode_chat(chat: tokens_pb2.Chat) -> tuple[Message, ...]:
    return tuple(map(decode_message, chat.messages))


def decode_message(turn: tokens_pb2.Message) -> Message:
    calls = turn.tool_calls
    return Message(
        turn.role,
        tuple(map(_decode_part, turn.parts)) if turn.parts else turn.content,
        turn.name,
        turn.tool_call_id,
        tuple(ToolCall(call.id, call.name, call.arguments) for call in calls) if calls else (),
        turn.reasoning,
    )


def _decode_part(part: tokens_pb2.Part) -> str | Image:
    if part.HasField("image"):
        return Image(part.image.data, part.image.name)
    if part.HasField("sound"):
        return Sound(part.sound.data, part.sound.name)
    if part.HasField("video"):
        return Video(part.video.data, part.video.name, heard=part.video.heard)
    return part.text


def decode_options(chat: tokens_pb2.Chat) -> ChatOptions:
    return ChatOptions(
        tools=tuple(Tool(t.name, t.description, t.parameters, t.strict) for t in chat.tools),
        tool_choice=chat.tool_choice or ToolChoice.AUTO,
        tool_name=chat.tool_name,
        allowed_tools=tuple(chat.allowed_tools),
        parallel_tool_calls=not chat.one_tool_call,
        chat_template_kwargs=chat.chat_template_kwargs,
        add_generation_prompt=(
            chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
        ),
        continue_final_message=chat.continue_final_message,
        divided=chat.divided,
    )
