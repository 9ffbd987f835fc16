"""Codec for Saxml's CustomService: bytes in, bytes out."""

from __future__ import annotations

from sax.errors import InvalidRequest
from sax.proto import custom_pb2
from sax.wire.extra_inputs import ExtraInputs, encode_extra_inputs


def encode_custom(
    model_id: str, request: bytes, method: str, extra: ExtraInputs | None = None
) -> custom_pb2.CustomRequest:
    """Encode a custom request. Raises InvalidRequest for what a message cannot hold."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return custom_pb2.CustomRequest(
            model_key=model_id, request=request, method_name=method, extra_inputs=inputs
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(
            f"a custom request needs bytes and a method name: {exc}", param="request"
        ) from exc
