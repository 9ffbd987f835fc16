"""Codec for changes of weights."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from sax.errors import InvalidRequest
from sax.format import listing, quoted
from sax.names import ModelId
from sax.proto import control_pb2
from sax.weights import Pausing, ReplicaWeights, WeightAction, WeightChange

Choice = TypeVar("Choice", bound=StrEnum)


def encode_weights(change: WeightChange, term: int = 0) -> control_pb2.WeightsRequest:
    """Raises InvalidName."""
    return control_pb2.WeightsRequest(
        model_id=str(ModelId.parse(change.model_id)),
        action=change.action,
        source=change.source,
        version=change.version,
        expected=change.expected,
        partial=change.partial,
        pausing=change.pausing,
        term=term,
    )


def decode_weights(msg: control_pb2.WeightsRequest) -> WeightChange:
    """Raises InvalidName, InvalidRequest."""
    return WeightChange(
        model_id=str(ModelId.parse(msg.model_id)),
        action=choice_of(WeightAction, msg.action, "action"),
        source=msg.source,
        version=msg.version,
        expected=msg.expected,
        partial=msg.partial,
        pausing=choice_of(Pausing, msg.pausing or Pausing.WAIT, "mode"),
    )


def encode_replica(replica: ReplicaWeights) -> control_pb2.ReplicaWeights:
    return control_pb2.ReplicaWeights(
        address=replica.address,
        version=replica.version,
        state=replica.state,
        error=replica.error,
    )


def decode_replica(msg: control_pb2.ReplicaWeights) -> ReplicaWeights:
    return ReplicaWeights(msg.address, msg.version, msg.state, msg.error)


def choice_of(kind: type[Choice], text: str, param: str) -> Choice:
    """Raises InvalidRequest naming the choices."""
    try:
        return kind(text)
    except ValueError:
        raise InvalidRequest(
            f"{param} is {quoted(text)}: choose {listing(list(kind))}", param=param
        ) from None
