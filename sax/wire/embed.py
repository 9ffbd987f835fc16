"""Codec for embeddings, pairs, classes and gradients: our TokenService and Saxml's LMService."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sax.chat import Image
from sax.errors import InvalidRequest
from sax.passes import (
    ChatInput,
    Classified,
    Embedded,
    EmbedInput,
    Gradients,
    PairInput,
    PairScores,
    TokenScores,
)
from sax.proto import lm_pb2, tokens_pb2
from sax.wire.extra_inputs import ExtraInputs, encode_extra_inputs
from sax.wire.prompts import decode_message, put_messages


def encode_embed(
    model_id: str,
    inputs: Sequence[EmbedInput],
    dimensions: int = 0,
    prompt_name: str = "",
    *,
    takes_tokens: bool = False,
) -> tokens_pb2.EmbedRequest:
    """Encode texts, token ids or images to embed. Raises InvalidRequest naming the input.

    takes_tokens: a vector per token may be the answer.
    """
    try:
        msg = tokens_pb2.EmbedRequest(
            model_key=model_id,
            dimensions=dimensions,
            prompt_name=prompt_name,
            takes_tokens=takes_tokens,
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"dimensions or prompt_name cannot be sent: {exc}") from exc
    _put_inputs(msg.inputs, inputs)
    return msg


def decode_embed(msg: tokens_pb2.EmbedRequest) -> tuple[str, list[EmbedInput], int, str]:
    """Return the model, the inputs, the dimensions and the name of the prompt."""
    return msg.model_key, _inputs(msg.inputs), msg.dimensions, msg.prompt_name


def encode_classify(
    model_id: str,
    inputs: Sequence[EmbedInput],
    *,
    takes_tokens: bool = False,
    candidates: Sequence[PairInput] = (),
) -> tokens_pb2.ClassifyRequest:
    """Encode inputs to classify. Raises InvalidRequest naming the input.

    takes_tokens: scores of each token may be the answer. candidates: to choose from.
    """
    msg = tokens_pb2.ClassifyRequest(model_key=model_id, takes_tokens=takes_tokens)
    _put_inputs(msg.inputs, inputs)
    _put_inputs(msg.candidates, candidates)
    return msg


def decode_classify(
    msg: tokens_pb2.ClassifyRequest,
) -> tuple[str, list[EmbedInput], list[PairInput]]:
    """Return the model, the inputs and the candidates."""
    return msg.model_key, _inputs(msg.inputs), [*map(_pair_input, msg.candidates)]


def _put_inputs(fields: Any, inputs: Sequence[EmbedInput]) -> None:
    for index, each in enumerate(inputs):
        part = fields.add()
        try:
            if isinstance(each, str):
                part.text = each
            elif isinstance(each, Image | ChatInput):
                chat = ChatInput.of(each) if isinstance(each, Image) else each
                part.chat.SetInParent()
                put_messages(part.chat.messages, chat.messages)
            else:
                part.tokens.SetInParent()
                part.tokens.ids.extend(each)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"input {index} cannot be sent: {exc}", param="input") from exc


def _inputs(fields: Iterable[tokens_pb2.EmbedInput]) -> list[EmbedInput]:
    return [_input(part) for part in fields]


def _input(part: tokens_pb2.EmbedInput) -> EmbedInput:
    if part.HasField("tokens"):
        return tuple(part.tokens.ids)
    return _pair_input(part)


def _pair_input(part: tokens_pb2.EmbedInput) -> PairInput:
    if part.HasField("chat"):
        return ChatInput(tuple(map(decode_message, part.chat.messages)))
    return part.text


def encode_classified(classified: Classified) -> tokens_pb2.ClassifyResponse:
    msg = tokens_pb2.ClassifyResponse(
        labels=classified.labels, prompt_tokens=classified.prompt_tokens
    )
    for scores in classified.scores:
        msg.scores.add().values.extend(scores)
    for tokens in classified.tokens:
        _put_vectors(msg.tokens.add(), [each.scores for each in tokens])
        for each in tokens:
            msg.tokens[-1].places.add(
                start=each.start, end=each.end, continues=each.continues, special=each.special
            )
    return msg


def decode_classified(msg: tokens_pb2.ClassifyResponse) -> Classified:
    scores = [[*vector.values] for vector in msg.scores]
    tokens = [
        [
            TokenScores(of_one, place.start, place.end, place.continues, place.special)
            for of_one, place in zip(_vectors(each), each.places, strict=True)
        ]
        for each in msg.tokens
    ]
    return Classified(tuple(msg.labels), scores, msg.prompt_tokens, tokens)


def _put_vectors(msg: tokens_pb2.TokenVectors, vectors: Sequence[Sequence[float]]) -> None:
    msg.width = len(vectors[0]) if vectors else 0
    for vector in vectors:
        msg.values.extend(vector)


def _vectors(msg: tokens_pb2.TokenVectors) -> list[list[float]]:
    values, width = [*msg.values], msg.width
    return [values[at : at + width] for at in range(0, len(values), max(width, 1))]


def encode_pairs(
    model_id: str, first: Sequence[PairInput], second: Sequence[PairInput]
) -> tokens_pb2.ScorePairsRequest:
    """Encode pairs of texts, or of texts and images. Raises InvalidRequest for other things."""
    if any(isinstance(each, Image | ChatInput) for each in (*first, *second)):
        msg = tokens_pb2.ScorePairsRequest(model_key=model_id)
        _put_inputs(msg.first_inputs, first)
        _put_inputs(msg.second_inputs, second)
        return msg
    texts: list[Any] = [[*first], [*second]]
    try:
        return tokens_pb2.ScorePairsRequest(model_key=model_id, first=texts[0], second=texts[1])
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the texts of the pairs cannot be sent: {exc}") from exc


def decode_pairs(
    msg: tokens_pb2.ScorePairsRequest,
) -> tuple[str, list[PairInput], list[PairInput]]:
    """Return the model, and both of each pair."""
    if not msg.first_inputs and not msg.second_inputs:
        return msg.model_key, [*msg.first], [*msg.second]
    first, second = ([*map(_pair_input, each)] for each in (msg.first_inputs, msg.second_inputs))
    return msg.model_key, first, second


def encode_pair_scores(found: PairScores) -> tokens_pb2.ScorePairsResponse:
    return tokens_pb2.ScorePairsResponse(scores=found.scores, prompt_tokens=found.prompt_tokens)


def decode_pair_scores(msg: tokens_pb2.ScorePairsResponse) -> PairScores:
    return PairScores([*msg.scores], msg.prompt_tokens)


def encode_gradient(
    model_id: str, prefix: str, suffix: str, extra: ExtraInputs | None = None
) -> lm_pb2.GradientRequest:
    """Encode Saxml's request for gradients. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.GradientRequest(
            model_key=model_id, prefix=prefix, suffix=suffix, extra_inputs=inputs
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"prefix or suffix cannot be sent: {exc}") from exc


def encode_gradients(found: Gradients) -> lm_pb2.GradientResponse:
    msg = lm_pb2.GradientResponse(score=found.score)
    for name, values in found.gradients.items():
        msg.gradients[name].values.extend(values)
    return msg


def decode_gradients(msg: lm_pb2.GradientResponse) -> Gradients:
    return Gradients([*msg.score], {name: [*each.values] for name, each in msg.gradients.items()})


def encode_embedded(embedded: Embedded) -> tokens_pb2.EmbedResponse:
    msg = tokens_pb2.EmbedResponse(prompt_tokens=embedded.prompt_tokens)
    for vector in embedded.vectors:
        msg.vectors.add().values.extend(vector)
    for vectors in embedded.tokens:
        _put_vectors(msg.tokens.add(), vectors)
    return msg


def decode_embedded(msg: tokens_pb2.EmbedResponse) -> Embedded:
    vectors = [[*vector.values] for vector in msg.vectors]
    return Embedded(vectors, msg.prompt_tokens, [_vectors(each) for each in msg.tokens])


def encode_embed_question(
    model_id: str, text: str, extra: ExtraInputs | None = None
) -> lm_pb2.EmbedRequest:
    """Encode Saxml's request to embed one text. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.EmbedRequest(model_key=model_id, text=text, extra_inputs=inputs)
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the text cannot be sent: {exc}", param="text") from exc
