"""Codec for the token stream: requests, chunks, failures.

Chunks are the hot path (one per request and engine step); their functions build one object each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from sax import errors
from sax.chat import PLAIN_CHAT, AnswerFormat, Content, Image, Sound, ToolChoice
from sax.errors import InvalidRequest, SaxError
from sax.fields.sampling import SAMPLING, UNCHANGED
from sax.format import without_long_words
from sax.proto import tokens_pb2
from sax.types import (
    AnswerSoFar,
    ChatOptions,
    GenerateRequest,
    HypothesisText,
    Message,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
    Tool,
    ToolCall,
)

# The fields of the table, by their shape in the message.
_WIRE = tokens_pb2.Sampling.DESCRIPTOR.fields_by_name
_DEFAULTS = {name: getattr(UNCHANGED, name) for name in SAMPLING}
_LISTS = {name for name, value in _DEFAULTS.items() if isinstance(value, tuple)}
_MAPS = {name for name, value in _DEFAULTS.items() if isinstance(value, dict)}
_NEVER_ABSENT = {name for name in _DEFAULTS if not _WIRE[name].has_presence} - _LISTS - _MAPS

Prompt = str | tuple[int, ...] | tuple[Message, ...]

_REPLY = tuple(each.name for each in fields(ReplyOptions))
_NO_OPTIONS = ReplyOptions()
_TURN = ("role", "name", "tool_call_id", "reasoning")  # texts of a message
_MOST_MS = 2**31 - 1


def encode_generate(request_number: int, request: GenerateRequest) -> tokens_pb2.Generate:
    """Encode a request under a number of this connection. Raises InvalidRequest naming a field that
    no message can hold (a negative seed, half a surrogate pair)."""
    msg = tokens_pb2.Generate(id=request_number)
    _put(msg, "model_key", request.model_id, "model_id")
    _put(msg, "request_id", request.request_id)
    _put(msg, "account", request.account)
    _put(msg, "priority", request.priority)
    _put(msg, "cache_salt", request.cache_salt)
    _put(msg, "traceparent", request.traceparent)
    put_timeout(msg, request.timeout_s)
    _put_prompt(msg, request.prompt, request.chat)
    _put_sampling(msg.sampling, request.sampling)
    _put_reply(msg.reply, request.reply)
    if request.answer is not None:
        _put_answer(msg.answer, request.answer)
    return msg


def decode_generate(msg: tokens_pb2.Generate, account: str = "") -> GenerateRequest:
    """Decode a request; its number stays in the message. `account`: if the message names none."""
    return GenerateRequest(
        model_id=msg.model_key,
        prompt=_decode_prompt(msg),
        sampling=_decode_sampling(msg.sampling),
        reply=_decode_reply(msg.reply) if msg.HasField("reply") else _NO_OPTIONS,
        chat=_decode_options(msg.chat) if msg.HasField("chat") else PLAIN_CHAT,
        request_id=msg.request_id,
        account=msg.account or account,
        priority=msg.priority,
        cache_salt=msg.cache_salt,
        timeout_s=msg.timeout_ms / 1000 if msg.timeout_ms else None,
        answer=_decode_answer(msg.answer) if msg.HasField("answer") else None,
        traceparent=msg.traceparent,
    )


def put_timeout(msg: tokens_pb2.Generate, timeout_s: float | None) -> None:
    """Set the time limit, in whole milliseconds of 1 or more.

    None, or a time longer than a message can hold, means no limit on the server.
    """
    if timeout_s is None or timeout_s > _MOST_MS:
        return
    # Rounded first: the product of a whole number of milliseconds may lie just above it.
    timeout_ms = max(1, math.ceil(round(1000 * timeout_s, 6)))
    msg.timeout_ms = timeout_ms if timeout_ms <= _MOST_MS else 0


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
    _put(msg, "model_key", model_id, "model_id")
    if isinstance(prompt, str):
        _put(msg, "text", prompt, "prompt")
    else:
        _put_chat(msg.chat, prompt, chat)
    return msg


def decode_tokenize(
    msg: tokens_pb2.TokenizeRequest,
) -> tuple[str, str | tuple[Message, ...], bool | None, ChatOptions]:
    """Return the model, the prompt, `add_special_tokens` and the options of a chat; `token_texts`
    stays in the message."""
    special = msg.add_special_tokens if msg.HasField("add_special_tokens") else None
    if msg.WhichOneof("prompt") == "chat":
        return msg.model_key, _decode_chat(msg.chat), special, _decode_options(msg.chat)
    return msg.model_key, msg.text, special, PLAIN_CHAT


def encode_detokenize(model_id: str, ids: Iterable[int]) -> tokens_pb2.DetokenizeRequest:
    """Encode token ids to turn into text. Raises InvalidRequest."""
    msg = tokens_pb2.DetokenizeRequest()
    _put(msg, "model_key", model_id, "model_id")
    _extend(msg.ids, ids, "tokens")
    return msg


def decode_detokenize(msg: tokens_pb2.DetokenizeRequest) -> tuple[str, tuple[int, ...]]:
    return msg.model_key, tuple(msg.ids)


def encode_chunk(request_number: int, chunk: TokenChunk) -> tokens_pb2.Chunk:
    msg = tokens_pb2.Chunk()
    put_chunk(msg, request_number, chunk)
    return msg


def put_chunk(msg: tokens_pb2.Chunk, request_number: int, chunk: TokenChunk) -> None:
    """Encode a chunk into an empty message in place: adding finished messages to a list copies
    them, which makes a token three times as expensive."""
    msg.id = request_number
    msg.text = chunk.text
    msg.token_ids.extend(chunk.token_ids)
    if chunk.logprobs:
        msg.logprobs.extend(map(_encode_logprob, chunk.logprobs))
    if chunk.finish_reason:
        msg.finish_reason = chunk.finish_reason
    msg.prompt_tokens = chunk.prompt_tokens
    msg.completion_tokens = chunk.completion_tokens
    msg.score = chunk.score
    if chunk.cached_tokens:
        msg.cached_tokens = chunk.cached_tokens
    if chunk.seed is not None or chunk.prompt_logprobs or chunk.prompt_token_ids:
        _put_prompt_part(msg, chunk)
    if chunk.version:
        msg.version = chunk.version
    if chunk.queue_s:
        msg.queue_s = chunk.queue_s
    if chunk.traceparent:
        msg.traceparent = chunk.traceparent
    if chunk.hypotheses:
        _put_hypotheses(msg, chunk)
    if chunk.reasoning_tokens:
        msg.reasoning_tokens = chunk.reasoning_tokens
    if chunk.schema_violation:
        msg.schema_violation = chunk.schema_violation
    if chunk.answer_format is not None:
        _put_answer_format(msg.answer_format, chunk.answer_format)
    if isinstance(chunk.stop_reason, str):
        msg.stop_text = chunk.stop_reason
    elif chunk.stop_reason is not None:
        msg.stop_token_id = chunk.stop_reason


def _put_answer(msg: tokens_pb2.AnswerSoFar, answer: AnswerSoFar) -> None:
    msg.SetInParent()
    _extend(msg.token_ids, answer.token_ids, "answer.token_ids")
    _put(msg, "score", answer.score, "answer.score")
    _put(msg, "prompt_logprobs", answer.prompt_logprobs, "answer.prompt_logprobs")
    _put(msg, "version", answer.version, "answer.version")
    _put(msg, "traceparent", answer.traceparent)


def _decode_answer(msg: tokens_pb2.AnswerSoFar) -> AnswerSoFar:
    return AnswerSoFar(
        token_ids=tuple(msg.token_ids),
        score=msg.score,
        prompt_logprobs=msg.prompt_logprobs,
        version=msg.version,
        traceparent=msg.traceparent,
    )


def _put_prompt_part(msg: tokens_pb2.Chunk, chunk: TokenChunk) -> None:
    """Put what only the first few chunks of an answer have."""
    if chunk.seed is not None:
        msg.seed = chunk.seed
    msg.prompt_token_ids.extend(chunk.prompt_token_ids)
    msg.prompt_logprobs.extend(map(_encode_logprob, chunk.prompt_logprobs))


def _put_answer_format(msg: tokens_pb2.AnswerFormat, format: AnswerFormat) -> None:
    msg.tools, msg.reasoning = format.tools, format.reasoning
    msg.reasoning_open = format.reasoning_open


def _put_hypotheses(msg: tokens_pb2.Chunk, chunk: TokenChunk) -> None:
    for each in chunk.hypotheses:
        msg.hypotheses.add(
            text=each.text,
            token_ids=each.token_ids,
            score=each.score,
            stop_token_id=each.stop_token_id,
        )


def decode_chunk(msg: tokens_pb2.Chunk) -> TokenChunk:
    """Decode a chunk; `decode_failure` reads one that carries a failure."""
    logprobs, scores, prompt = msg.logprobs, msg.prompt_logprobs, msg.prompt_token_ids
    return TokenChunk(
        msg.text,
        tuple(msg.token_ids[:]),
        tuple(map(_decode_logprob, logprobs)) if logprobs else (),
        msg.finish_reason or None,
        msg.prompt_tokens,
        msg.completion_tokens,
        msg.score,
        msg.cached_tokens,
        tuple(map(_decode_logprob, scores)) if scores else (),
        tuple(prompt[:]) if prompt else (),
        _decode_stop_reason(msg),
        msg.seed if msg.HasField("seed") else None,
        tuple(map(_decode_hypothesis, found)) if (found := msg.hypotheses) else (),
        msg.version,
        answer_format=(
            _decode_answer_format(msg.answer_format) if msg.HasField("answer_format") else None
        ),
        queue_s=msg.queue_s,
        traceparent=msg.traceparent,
        reasoning_tokens=msg.reasoning_tokens,
        schema_violation=msg.schema_violation,
    )


def _decode_answer_format(msg: tokens_pb2.AnswerFormat) -> AnswerFormat:
    return AnswerFormat(msg.tools, msg.reasoning, msg.reasoning_open)


def _decode_hypothesis(msg: tokens_pb2.Hypothesis) -> HypothesisText:
    return HypothesisText(
        msg.text,
        tuple(msg.token_ids),
        msg.score,
        msg.stop_token_id if msg.HasField("stop_token_id") else None,
    )


def _decode_stop_reason(msg: tokens_pb2.Chunk) -> int | str | None:
    which = msg.WhichOneof("stop_reason")
    return getattr(msg, which) if which else None


def encode_failure(request_number: int, error: SaxError) -> tokens_pb2.Chunk:
    """Encode the last chunk of a failed request."""
    return tokens_pb2.Chunk(
        id=request_number,
        failure=tokens_pb2.Failure(
            error=errors.wire_name(error),
            text=without_long_words(error.text),
            retry_after_s=error.retry_after_s or 0.0,
            param=error.param or "",
        ),
    )


def decode_failure(msg: tokens_pb2.Chunk) -> SaxError:
    """Return the error in a failed chunk; an unknown class becomes Internal."""
    failure = msg.failure
    return errors.from_name(
        failure.error,
        failure.text,
        param=failure.param or None,
        retry_after_s=failure.retry_after_s or None,
    )


def _put(msg: ProtoMessage, field: str, value: Any, param: str | None = None) -> None:
    """Set a scalar field. Raises InvalidRequest naming the request's field."""
    try:
        setattr(msg, field, value)
    except (ValueError, TypeError) as exc:
        raise _misfit(param or field, exc) from exc


def _extend(repeated: Any, values: Iterable[Any], param: str) -> None:
    try:
        repeated.extend(values)
    except (ValueError, TypeError) as exc:
        raise _misfit(param, exc) from exc


def _update(mapping: Any, values: Mapping[Any, Any], param: str) -> None:
    try:
        mapping.update(values)
    except (ValueError, TypeError) as exc:
        raise _misfit(param, exc) from exc


def _misfit(param: str, exc: Exception) -> InvalidRequest:
    return InvalidRequest(f"{param} cannot be sent: {exc}", param=param)


def _put_prompt(msg: tokens_pb2.Generate, prompt: Prompt, chat: ChatOptions) -> None:
    if isinstance(prompt, str):
        _put(msg, "text", prompt, "prompt")
    elif prompt and isinstance(prompt[0], Message):
        _put_chat(msg.chat, prompt, chat)
    else:
        msg.tokens.SetInParent()
        _extend(msg.tokens.ids, prompt, "prompt")


def _put_chat(chat: tokens_pb2.Chat, messages: Iterable[Any], options: ChatOptions) -> None:
    chat.SetInParent()
    for message in messages:
        turn = chat.messages.add()
        for name in _TURN:
            if value := getattr(message, name):
                _put(turn, name, value, f"messages.{name}")
        _put_content(turn, message.content)
        for call in message.tool_calls:
            _put_fields(turn.tool_calls.add(), call, ("id", "name", "arguments"), "tool_calls")
    if options == PLAIN_CHAT:
        return
    for tool in options.tools:
        _put_fields(chat.tools.add(), tool, ("name", "description", "parameters"), "tools")
        chat.tools[-1].strict = tool.strict
    _put_fields(chat, options, ("tool_choice", "tool_name", "chat_template_kwargs"), "")
    chat.one_tool_call = not options.parallel_tool_calls
    chat.add_generation_prompt = options.add_generation_prompt
    chat.continue_final_message = options.continue_final_message
    chat.divided = options.divided


def _put_content(turn: tokens_pb2.Message, content: Content) -> None:
    if isinstance(content, str):
        _put(turn, "content", content, "messages.content")
        return
    for part in content:
        if isinstance(part, str):
            _put(turn.parts.add(), "text", part, "messages.content")
        else:
            added = turn.parts.add()
            medium = added.sound if isinstance(part, Sound) else added.image
            medium.SetInParent()
            _put_fields(medium, part, ("data", "name"), "messages.content")


def _put_fields(msg: ProtoMessage, value: Any, names: Iterable[str], at: str) -> None:
    for name in names:
        _put(msg, name, getattr(value, name), f"{at}.{name}" if at else name)


def _put_sampling(msg: tokens_pb2.Sampling, sampling: SamplingParams) -> None:
    """Set the fields that are not at their default, and those that cannot be absent."""
    for name, default in _DEFAULTS.items():
        value = getattr(sampling, name)
        if value == default and name not in _NEVER_ABSENT:
            continue
        if name in _LISTS:
            _extend(getattr(msg, name), value, name)
        elif name in _MAPS:
            _update(getattr(msg, name), value, name)
        else:
            _put(msg, name, value)


def _put_reply(msg: tokens_pb2.Reply, reply: ReplyOptions) -> None:
    if reply == _NO_OPTIONS:
        return
    for name in _REPLY:
        if (value := getattr(reply, name)) is not None:
            _put(msg, name, value)


def _decode_reply(msg: tokens_pb2.Reply) -> ReplyOptions:
    return ReplyOptions(**{field.name: value for field, value in msg.ListFields()})


def _decode_prompt(msg: tokens_pb2.Generate) -> Prompt:
    match msg.WhichOneof("prompt"):
        case "tokens":
            return tuple(msg.tokens.ids)
        case "chat":
            return _decode_chat(msg.chat)
        case _:
            return msg.text


def _decode_chat(chat: tokens_pb2.Chat) -> tuple[Message, ...]:
    return tuple(map(_decode_message, chat.messages))


def _decode_message(turn: tokens_pb2.Message) -> Message:
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
    return part.text


def _decode_options(chat: tokens_pb2.Chat) -> ChatOptions:
    return ChatOptions(
        tools=tuple(Tool(t.name, t.description, t.parameters, t.strict) for t in chat.tools),
        tool_choice=chat.tool_choice or ToolChoice.AUTO,
        tool_name=chat.tool_name,
        parallel_tool_calls=not chat.one_tool_call,
        chat_template_kwargs=chat.chat_template_kwargs,
        add_generation_prompt=(
            chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
        ),
        continue_final_message=chat.continue_final_message,
        divided=chat.divided,
    )


def _decode_sampling(msg: tokens_pb2.Sampling) -> SamplingParams:
    return SamplingParams(**{name: _setting(msg, name) for name in _DEFAULTS})


def _setting(msg: tokens_pb2.Sampling, name: str) -> Any:
    if name in _LISTS:
        return tuple(getattr(msg, name))
    if name in _MAPS:
        return dict(getattr(msg, name))
    absent = name not in _NEVER_ABSENT and not msg.HasField(name)  # pyright: ignore[reportArgumentType]
    return _DEFAULTS[name] if absent else getattr(msg, name)


def _encode_logprob(logprob: TokenLogprob) -> tokens_pb2.TokenLogprob:
    return tokens_pb2.TokenLogprob(
        token_id=logprob.token_id,
        token=logprob.token,
        token_bytes=logprob.token_bytes,
        logprob=logprob.logprob,
        top=map(_encode_logprob, logprob.top),
        text_offset=logprob.text_offset,
        rank=logprob.rank,
    )


def _decode_logprob(msg: tokens_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        msg.token_id,
        msg.token,
        msg.token_bytes,
        msg.logprob,
        tuple(map(_decode_logprob, msg.top)),
        msg.text_offset,
        msg.rank,
    )
