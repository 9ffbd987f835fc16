"""Codec for the token stream: requests, chunks, failures.

Chunks are the hot path (one per request and engine step); their functions build one object each.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from sax import errors
from sax.chat import PLAIN_CHAT
from sax.errors import SaxError
from sax.fields.sampling import SAMPLING, UNCHANGED
from sax.format import without_long_words
from sax.proto import tokens_pb2
from sax.types import GenerateRequest, ReplyOptions, SamplingParams, TokenChunk
from sax.wire.asked import (
    decode_answer,
    decode_answer_format,
    decode_hypothesis,
    decode_logprob,
    decode_routed_experts,
    decode_stop_reason,
    decode_weight_runs,
    encode_logprob,
    put_answer,
    put_answer_format,
    put_hypotheses,
    put_prompt_part,
    put_routed_experts,
    put_weights,
)
from sax.wire.prompts import decode_options, decode_prompt, extend, put, put_prompt, update

# The fields of the table, by their shape in the message.
_WIRE = tokens_pb2.Sampling.DESCRIPTOR.fields_by_name
_DEFAULTS = {name: getattr(UNCHANGED, name) for name in SAMPLING}
_LISTS = {name for name, value in _DEFAULTS.items() if isinstance(value, tuple)}
_MAPS = {name for name, value in _DEFAULTS.items() if isinstance(value, dict)}
_NEVER_ABSENT = {name for name in _DEFAULTS if not _WIRE[name].has_presence} - _LISTS - _MAPS


_REPLY = tuple(each.name for each in fields(ReplyOptions))
_NO_OPTIONS = ReplyOptions()
_MOST_MS = 2**31 - 1


def encode_generate(request_number: int, request: GenerateRequest) -> tokens_pb2.Generate:
    """Encode a request under a number of this connection. Raises InvalidRequest naming a field that
    no message can hold (a negative seed, half a surrogate pair)."""
    msg = tokens_pb2.Generate(id=request_number)
    put(msg, "model_key", request.model_id, "model_id")
    put(msg, "request_id", request.request_id)
    put(msg, "account", request.account)
    put(msg, "priority", request.priority)
    put(msg, "cache_salt", request.cache_salt)
    put(msg, "traceparent", request.traceparent)
    put_timeout(msg, request.timeout_s)
    put_prompt(msg, request.prompt, request.chat)
    _put_sampling(msg.sampling, request.sampling)
    _put_reply(msg.reply, request.reply)
    if request.answer is not None:
        put_answer(msg.answer, request.answer)
    return msg


def decode_generate(msg: tokens_pb2.Generate, account: str = "") -> GenerateRequest:
    """Decode a request; its number stays in the message. `account`: if the message names none."""
    return GenerateRequest(
        model_id=msg.model_key,
        prompt=decode_prompt(msg),
        sampling=_decode_sampling(msg.sampling),
        reply=_decode_reply(msg.reply) if msg.HasField("reply") else _NO_OPTIONS,
        chat=decode_options(msg.chat) if msg.HasField("chat") else PLAIN_CHAT,
        request_id=msg.request_id,
        account=msg.account or account,
        priority=msg.priority,
        cache_salt=msg.cache_salt,
        timeout_s=msg.timeout_ms / 1000 if msg.timeout_ms else None,
        answer=decode_answer(msg.answer) if msg.HasField("answer") else None,
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
        msg.logprobs.extend(map(encode_logprob, chunk.logprobs))
    if chunk.finish_reason:
        msg.finish_reason = chunk.finish_reason
    msg.prompt_tokens = chunk.prompt_tokens
    msg.completion_tokens = chunk.completion_tokens
    msg.score = chunk.score
    if chunk.cached_tokens:
        msg.cached_tokens = chunk.cached_tokens
    if chunk.seed is not None or chunk.prompt_logprobs or chunk.prompt_token_ids:
        put_prompt_part(msg, chunk)
    if chunk.version:
        msg.version = chunk.version
    if chunk.queue_s:
        msg.queue_s = chunk.queue_s
    if chunk.traceparent:
        msg.traceparent = chunk.traceparent
    if chunk.hypotheses:
        put_hypotheses(msg, chunk)
    if chunk.reasoning_tokens:
        msg.reasoning_tokens = chunk.reasoning_tokens
    if chunk.schema_violation:
        msg.schema_violation = chunk.schema_violation
    if chunk.answer_format is not None:
        put_answer_format(msg.answer_format, chunk.answer_format)
    if chunk.weights:
        put_weights(msg, chunk)
    if chunk.routed_experts is not None:
        put_routed_experts(msg, chunk.routed_experts)
    if isinstance(chunk.stop_reason, str):
        msg.stop_text = chunk.stop_reason
    elif chunk.stop_reason is not None:
        msg.stop_token_id = chunk.stop_reason


def decode_chunk(msg: tokens_pb2.Chunk) -> TokenChunk:
    """Decode a chunk; `decode_failure` reads one that carries a failure."""
    logprobs, scores, prompt = msg.logprobs, msg.prompt_logprobs, msg.prompt_token_ids
    return TokenChunk(
        msg.text,
        tuple(msg.token_ids[:]),
        tuple(map(decode_logprob, logprobs)) if logprobs else (),
        msg.finish_reason or None,
        msg.prompt_tokens,
        msg.completion_tokens,
        msg.score,
        msg.cached_tokens,
        tuple(map(decode_logprob, scores)) if scores else (),
        tuple(prompt[:]) if prompt else (),
        decode_stop_reason(msg),
        msg.seed if msg.HasField("seed") else None,
        tuple(map(decode_hypothesis, found)) if (found := msg.hypotheses) else (),
        msg.version,
        answer_format=(
            decode_answer_format(msg.answer_format) if msg.HasField("answer_format") else None
        ),
        queue_s=msg.queue_s,
        traceparent=msg.traceparent,
        reasoning_tokens=msg.reasoning_tokens,
        schema_violation=msg.schema_violation,
        weights=decode_weight_runs(msg) if msg.weights else (),
        routed_experts=decode_routed_experts(msg),
    )


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


def _put_sampling(msg: tokens_pb2.Sampling, sampling: SamplingParams) -> None:
    """Set the fields that are not at their default, and those that cannot be absent."""
    for name, default in _DEFAULTS.items():
        value = getattr(sampling, name)
        if value == default and name not in _NEVER_ABSENT:
            continue
        if name in _LISTS:
            extend(getattr(msg, name), value, name)
        elif name in _MAPS:
            update(getattr(msg, name), value, name)
        else:
            put(msg, name, value)


def _put_reply(msg: tokens_pb2.Reply, reply: ReplyOptions) -> None:
    if reply == _NO_OPTIONS:
        return
    for name in _REPLY:
        if (value := getattr(reply, name)) is not None:
            put(msg, name, value)


def _decode_reply(msg: tokens_pb2.Reply) -> ReplyOptions:
    return ReplyOptions(**{field.name: value for field, value in msg.ListFields()})


def _decode_sampling(msg: tokens_pb2.Sampling) -> SamplingParams:
    return SamplingParams(**{name: _setting(msg, name) for name in _DEFAULTS})


def _setting(msg: tokens_pb2.Sampling, name: str) -> Any:
    if name in _LISTS:
        return tuple(getattr(msg, name))
    if name in _MAPS:
        return dict(getattr(msg, name))
    absent = name not in _NEVER_ABSENT and not msg.HasField(name)  # pyright: ignore[reportArgumentType]
    return _DEFAULTS[name] if absent else getattr(msg, name)
