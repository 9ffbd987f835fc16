"""Answers that the front gives itself."""

from __future__ import annotations

from typing import Any

from model_server.pathways.protocol.messages import IfrtResponse
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.summary import Summary

_SUFFIX = "_request"


def plain(kind: str, op_id: int) -> Any:
    """Return the IfrtResponse of a success, empty, to a request of a kind ("compile_request")."""
    response = IfrtResponse()
    response.response_metadata.op_id = op_id
    field = f"{kind.removesuffix(_SUFFIX)}_response"
    if field in response.DESCRIPTOR.fields_by_name:
        getattr(response, field).SetInParent()
    return response


def refused(op_id: int, fault: Fault) -> Any:
    """Return the IfrtResponse with a fault as its status.

    It has no body: where there is one, the client takes the request for done and never looks at the
    status.
    """
    response = IfrtResponse()
    response.response_metadata.op_id = op_id
    response.response_metadata.status.code = fault.code
    response.response_metadata.status.message = fault.text
    return response


def granted(summary: Summary, handles: dict[str, int]) -> Any:
    """Return the IfrtResponse of a success, with these handles in its body."""
    response = plain(summary.kind, summary.op_id)
    body = getattr(response, summary.response)
    for field, handle in handles.items():
        setattr(body, field, handle)
    return response


def plain_layout(request: Any, summary: Summary) -> Any:
    """Return the IfrtResponse with a row-major layout, for a device of an island that is down.

    jaxlib's client ends its whole process where this request fails. Nothing has this layout: arrays
    on such a device are lost.
    """
    response = granted(summary, {})
    axes = range(len(request.get_default_layout_request.dims))
    text = ",".join(str(axis) for axis in reversed(axes))
    response.get_default_layout_response.serialized_pjrt_layout = f"{{{text}}}".encode()
    return response
