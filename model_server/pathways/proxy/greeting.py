"""The first words with a client: versions, its name and its weight."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.protocol.messages import IfrtProxyVersion
from sax.errors import InvalidRequest

PROTOCOL = 25  # what the messages of jaxlib 0.10 mean here
SERDES = 3
_MOST_WEIGHT = 64.0


class Introduction(NamedTuple):
    """A client by its own word."""

    name: str  # "": none given
    weight: float  # its share of islands where clients compete


def agreed(request: Any) -> Any:
    """Return the version to speak, for a GrpcGetVersionRequest. Raises InvalidRequest."""
    least, most = request.min_version, request.max_version
    if not least.protocol_version <= PROTOCOL <= most.protocol_version:
        raise InvalidRequest(
            f"this client speaks versions {least.protocol_version} to {most.protocol_version} of "
            f"the IFRT proxy protocol and this server speaks {PROTOCOL}: use a jaxlib from 0.10 to "
            "0.12"
        )
    serdes = min(SERDES, most.ifrt_serdes_version_number)
    if least.ifrt_serdes_version_number > serdes:
        raise InvalidRequest(
            f"this client writes IFRT values from version {least.ifrt_serdes_version_number} on "
            f"and this server reads up to {SERDES}: use a jaxlib from 0.10 to 0.12"
        )
    return IfrtProxyVersion(protocol_version=PROTOCOL, ifrt_serdes_version_number=serdes)


def introduced(metadata: Any) -> Introduction:
    """Return the client of a GrpcIfrtSessionMetadata. Raises InvalidRequest.

    `initialization_data` of the client's options may hold `name` and `weight`.
    """
    spoken = metadata.version.protocol_version
    if spoken != PROTOCOL:
        raise InvalidRequest(
            f"a session in version {spoken} of the IFRT proxy protocol; {PROTOCOL} was agreed on"
        )
    values = metadata.initialization_data.attributes
    return Introduction(
        values["name"].string_value.decode(errors="replace") if "name" in values else "",
        _weight(values["weight"]) if "weight" in values else 1.0,
    )


def _weight(value: Any) -> float:
    weight = value.float_value or float(value.int64_value)
    if not 0 < weight <= _MOST_WEIGHT:
        raise InvalidRequest(f"a weight of {weight:g}: use one above 0 and up to {_MOST_WEIGHT:g}")
    return weight


def metadata(call: GrpcCall, key: str, message: Any) -> Any:
    """Return the message in a call's metadata. Raises InvalidRequest."""
    found = call.metadata(key)
    if found is None:
        raise InvalidRequest(f"a call without the metadata {key}: use jaxlib's client")
    return parsed(found, message)


def parsed(raw: bytes, message: Any) -> Any:
    """Raises InvalidRequest."""
    try:
        return message.FromString(raw)
    except DecodeError as exc:
        name = message.DESCRIPTOR.name
        raise InvalidRequest(f"bytes that are no {name} ({exc}): use jaxlib's client") from exc
