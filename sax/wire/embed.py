"""Codec for embeddings in our TokenService and Saxml's LMService."""

from __future__ import annotations

from collections.abc import Sequence

from sax.errors import InvalidRequest
from sax.proto import lm_pb2, tokens_pb2
from sax.types import Embedded, EmbedInput
from sax.wire.extra_inputs import ExtraInputs, encode_extra_inputs


def encode_embed(model_id: str, inputs: Sequence[EmbedInput]) -> tokens_pb2.EmbedRequest:
    """Encode texts or token ids to embed. Raises InvalidRequest naming the input."""
    msg = tokens_pb2.EmbedRequest(model_key=model_id)
    for index, each in enumerate(inputs):
        part = msg.inputs.add()
        try:
            if isinstance(each, str):
                part.text = each
            else:
                part.tokens.SetInParent()
                part.tokens.ids.extend(each)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"input {index} cannot be sent: {exc}", param="input") from exc
    return msg


def decode_embed(msg: tokens_pb2.EmbedRequest) -> tuple[str, list[EmbedInput]]:
    inputs: list[EmbedInput] = [
        tuple(part.tokens.ids) if part.HasField("tokens") else part.text for part in msg.inputs
    ]
    return msg.model_key, inputs


def encode_embedded(embedded: Embedded) -> tokens_pb2.EmbedResponse:
    msg = tokens_pb2.EmbedResponse(prompt_tokens=embedded.prompt_tokens)
    for vector in embedded.vectors:
        msg.vectors.add().values.extend(vector)
    return msg


def decode_embedded(msg: tokens_pb2.EmbedResponse) -> Embedded:
    return Embedded([[*vector.values] for vector in msg.vectors], msg.prompt_tokens)


def encode_embed_question(
    model_id: str, text: str, extra: ExtraInputs | None = None
) -> lm_pb2.EmbedRequest:
    """Encode Saxml's request to embed one text. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.EmbedRequest(model_key=model_id, text=text, extra_inputs=inputs)
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the text cannot be sent: {exc}", param="text") from exc
