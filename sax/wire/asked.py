"""Codec for parts of some answers: log-probabilities, hypotheses, a beginning made elsewhere."""

from __future__ import annotations

import msgspec

from sax import call_form
from sax.chat import AnswerFormat
from sax.proto import tokens_pb2
from sax.routed_experts import RoutedExpertIds
from sax.types import AnswerSoFar, HypothesisText, TokenChunk, TokenLogprob
from sax.weights import WeightRun
from sax.wire.prompts import extend, put

_Kinds = dict[str, dict[str, list[str]]]


def put_answer(msg: tokens_pb2.AnswerSoFar, answer: AnswerSoFar) -> None:
    msg.SetInParent()
    extend(msg.token_ids, answer.token_ids, "answer.token_ids")
    put(msg, "score", answer.score, "answer.score")
    put(msg, "prompt_logprobs", answer.prompt_logprobs, "answer.prompt_logprobs")
    put(msg, "version", answer.version, "answer.version")
    put(msg, "traceparent", answer.traceparent)


def decode_answer(msg: tokens_pb2.AnswerSoFar) -> AnswerSoFar:
    return AnswerSoFar(
        token_ids=tuple(msg.token_ids),
        score=msg.score,
        prompt_logprobs=msg.prompt_logprobs,
        version=msg.version,
        traceparent=msg.traceparent,
    )


def put_prompt_part(msg: tokens_pb2.Chunk, chunk: TokenChunk) -> None:
    """Put what only the first few chunks of an answer have."""
    if chunk.seed is not None:
        msg.seed = chunk.seed
    msg.prompt_token_ids.extend(chunk.prompt_token_ids)
    msg.prompt_logprobs.extend(map(encode_logprob, chunk.prompt_logprobs))


def put_hypotheses(msg: tokens_pb2.Chunk, chunk: TokenChunk) -> None:
    for each in chunk.hypotheses:
        msg.hypotheses.add(
            text=each.text,
            token_ids=each.token_ids,
            score=each.score,
            stop_token_id=each.stop_token_id,
        )


def decode_hypothesis(msg: tokens_pb2.Hypothesis) -> HypothesisText:
    return HypothesisText(
        msg.text,
        tuple(msg.token_ids),
        msg.score,
        msg.stop_token_id if msg.HasField("stop_token_id") else None,
    )


def encode_logprob(logprob: TokenLogprob) -> tokens_pb2.TokenLogprob:
    return tokens_pb2.TokenLogprob(
        token_id=logprob.token_id,
        token=logprob.token,
        token_bytes=logprob.token_bytes,
        logprob=logprob.logprob,
        top=map(encode_logprob, logprob.top),
        text_offset=logprob.text_offset,
        rank=logprob.rank,
    )


def decode_logprob(msg: tokens_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        msg.token_id,
        msg.token,
        msg.token_bytes,
        msg.logprob,
        tuple(map(decode_logprob, msg.top)),
        msg.text_offset,
        msg.rank,
    )


def put_answer_format(msg: tokens_pb2.AnswerFormat, format: AnswerFormat) -> None:
    msg.tools, msg.reasoning = format.tools, format.reasoning
    msg.reasoning_open, msg.generic = format.reasoning_open, format.generic
    if format.calls is not None:
        msg.calls = call_form.encoded(format.calls)
    if format.kinds:
        msg.kinds = msgspec.json.encode(format.kinds).decode()
    if format.thoughts is not None:
        msg.reasoning_begin, msg.reasoning_end = format.thoughts


def decode_answer_format(msg: tokens_pb2.AnswerFormat) -> AnswerFormat:
    return AnswerFormat(
        msg.tools,
        msg.reasoning,
        msg.reasoning_open,
        call_form.decoded(msg.calls) if msg.calls else None,
        msgspec.json.decode(msg.kinds, type=_Kinds) if msg.kinds else {},
        (msg.reasoning_begin, msg.reasoning_end) if msg.reasoning_end else None,
        msg.generic,
    )


def decode_stop_reason(msg: tokens_pb2.Chunk) -> int | str | None:
    which = msg.WhichOneof("stop_reason")
    return getattr(msg, which) if which else None


def put_weights(msg: tokens_pb2.Chunk, chunk: TokenChunk) -> None:
    for run in chunk.weights:
        msg.weights.add(version=run.version, tokens=run.tokens)


def decode_weight_runs(msg: tokens_pb2.Chunk) -> tuple[WeightRun, ...]:
    return tuple(WeightRun(run.version, run.tokens) for run in msg.weights)


def put_routed_experts(msg: tokens_pb2.Chunk, found: RoutedExpertIds) -> None:
    made = msg.routed_experts
    made.data, made.width = found.data, found.width
    made.tokens, made.layers, made.experts = found.shape


def decode_routed_experts(msg: tokens_pb2.Chunk) -> RoutedExpertIds | None:
    if not msg.HasField("routed_experts"):
        return None
    found = msg.routed_experts
    return RoutedExpertIds(found.data, found.tokens, found.layers, found.experts, found.width)
