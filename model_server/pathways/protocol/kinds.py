"""The kinds of requests of IFRT proxy, by the names of their fields."""

from __future__ import annotations

from model_server.pathways.protocol.messages import IfrtRequest, IfrtResponse

_SUFFIX = "_request"

# "compile_request", ...: the fields of IfrtRequest, in the order of their numbers.
REQUESTS: tuple[str, ...] = tuple(
    field.name
    for field in sorted(
        IfrtRequest.DESCRIPTOR.oneofs_by_name["request"].fields, key=lambda each: each.number
    )
)
# "compile_response", ...: the field of the answer, by that of the request.
RESPONSES: dict[str, str] = {
    name: name.removesuffix(_SUFFIX) + "_response"
    for name in REQUESTS
    if name.removesuffix(_SUFFIX) + "_response" in IfrtResponse.DESCRIPTOR.fields_by_name
}
