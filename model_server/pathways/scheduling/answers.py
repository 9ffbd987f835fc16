"""Requests to the hosts of an island and their answers, which are merged, granted or refused here.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from model_server.pathways.protocol import IfrtResponse
from model_server.pathways.scheduling.handles import DATA_LOSS, NOT_FOUND, Fault, IslandIncarnation
from model_server.pathways.scheduling.summary import Summary, answered_handles

Buffer = bytes | memoryview


class IslandRequest(NamedTuple):
    """A client's request on its way to the hosts of an island."""

    session: int
    made: int  # first of the handles that the worker may give out in its answer
    serialized: bytes  # an IfrtRequest
    buffers: Mapping[int, Buffer]  # host buffers that it names
    touches: tuple[int, ...] = ()  # handles that it reads or makes
    keeps: Callable[[], Collection[int]] = tuple  # those of them that it only reads for sure


class Reply(NamedTuple):
    """An answer as a worker sends it: a serialized IfrtResponse and the host buffers it fills.

    No bytes: this host of its island has no part in the answer.
    """

    response: bytes
    buffers: Mapping[int, Buffer]


NOBODY = Reply(b"", {})
Answered = Callable[[Reply], None]


def merged(replies: Sequence[Reply]) -> Reply:
    """Merge the answers of an island's hosts, in the order of the hosts; maybe NOBODY.

    The worst status counts, then the first answer that brings a host buffer (the host that holds
    the shard), then the first that says anything at all.
    """
    taking_part = [reply for reply in replies if reply.response]
    if len(taking_part) < 2:
        return next(iter(taking_part), NOBODY)
    replies = taking_part
    parsed = [IfrtResponse.FromString(reply.response) for reply in replies]
    worst = max(range(len(replies)), key=lambda at: (_code(parsed[at]), -at))
    if _code(parsed[worst]):
        return Reply(replies[worst].response, {})
    with_data = (reply for reply in replies if reply.buffers)
    said = max(range(len(replies)), key=lambda at: (_size(parsed[at]), -at))
    return next(with_data, replies[said])


def described(hosts: Sequence[Any]) -> Any:
    """Merge InitResponses: every device and memory once, all of them addressable."""
    merged = type(hosts[0])()
    merged.CopyFrom(hosts[0])
    for field in ("all_devices", "memories"):
        _merge_by_id(merged, [each for host in hosts for each in getattr(host, field)], field)
    for field in ("addressable_device_ids", "primary_device_ids"):
        ids = dict.fromkeys(each for host in hosts for each in getattr(host, field))
        merged.ClearField(field)
        getattr(merged, field).extend(ids)
    merged.process_index = 0
    return merged


def _merge_by_id(merged: Any, entries: Sequence[Any], field: str) -> None:
    found = {entry.id: entry for entry in reversed(entries)}
    merged.ClearField(field)
    getattr(merged, field).extend(found[each] for each in sorted(found))


def _code(response: Any) -> int:
    return response.response_metadata.status.code


def _size(response: Any) -> int:
    return len(response.SerializeToString()) if response.WhichOneof("response") else 0


def part_of(request: Any, summary: Summary, handles: tuple[int, ...], raw: bytes) -> bytes:
    """Return the request with these of its handles only, serialized; `raw` if these are all."""
    if handles == summary.reads:
        return raw
    part = type(request)()
    part.CopyFrom(request)
    body = getattr(part, summary.kind)
    (field,) = (*summary.row.reads, *summary.row.destroys)
    if isinstance(getattr(body, field), int):
        setattr(body, field, handles[0])
    else:
        del getattr(body, field)[:]
        getattr(body, field).extend(handles)
    return part.SerializeToString()


def part_to_copy(request: Any, array: int, result: int) -> bytes:
    """Return the request with one of the arrays to copy only, serialized."""
    part = type(request)()
    part.CopyFrom(request)
    body = part.copy_arrays_request
    del body.array_handles[:], body.result_handles[:]
    body.array_handles.append(array)
    body.result_handles.append(result)
    return part.SerializeToString()


class Gathering:
    """Answers of the parts of one request."""

    def __init__(self, parts: int, fault: Fault | None) -> None:
        self._missing = parts
        self._replies: list[tuple[IslandIncarnation, Any]] = []
        self.fault = fault  # the first there was
        self.only_lost = fault is None or fault.code == DATA_LOSS

    def answered(self, source: IslandIncarnation, outcome: Reply | Fault) -> bool:
        """Take the answer of one part; True with the last one."""
        self._missing -= 1
        if not isinstance(outcome, Fault):
            response = IfrtResponse.FromString(outcome.response)
            self._replies.append((source, response))
            status = response.response_metadata.status
            outcome = Fault(status.code, status.message)
        if outcome.code:
            self.fault = self.fault or outcome
            self.only_lost = self.only_lost and outcome.code == DATA_LOSS
        return not self._missing

    def handles(self, summary: Summary) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the handles that the workers chose, by island."""
        return tuple(
            (source.island, answered_handles(getattr(response, summary.response), summary.row))
            for source, response in self._replies
        )


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


def fault_in(response: bytes) -> Fault:
    """Return the status of an IfrtResponse to a fetch without host buffers."""
    status = IfrtResponse.FromString(response).response_metadata.status
    return Fault(status.code or NOT_FOUND, status.message or "nothing was copied")


def granted(summary: Summary, handles: dict[str, int]) -> Any:
    """Return the IfrtResponse of a success, with these handles in its body."""
    response = IfrtResponse()
    response.response_metadata.op_id = summary.op_id
    body = getattr(response, summary.response)
    body.SetInParent()
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
