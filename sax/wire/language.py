"""Codec for Saxml's LMService requests."""

from __future__ import annotations

from collections.abc import Sequence

from sax.errors import InvalidRequest
from sax.proto import lm_pb2
from sax.wire.extra_inputs import ExtraInputs, encode_extra_inputs


def encode_score(
    model_id: str, prefix: str, suffixes: Sequence[str], extra: ExtraInputs | None = None
) -> lm_pb2.ScoreRequest:
    """Encode a request to score suffixes after a prefix. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.ScoreRequest(
            model_key=model_id, prefix=prefix, suffix=suffixes, extra_inputs=inputs
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"prefix or suffixes cannot be sent: {exc}") from exc


def encode_question(
    model_id: str, text: str, extra: ExtraInputs | None = None
) -> lm_pb2.GenerateRequest:
    """Encode a text to continue. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.GenerateRequest(model_key=model_id, text=text, extra_inputs=inputs)
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the text cannot be sent: {exc}", param="text") from exc
