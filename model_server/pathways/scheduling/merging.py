"""Merging of the answers that the hosts of an island, or several islands, give to one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from model_server.pathways.protocol.messages import IfrtResponse
from model_server.pathways.scheduling.handles import DATA_LOSS, Fault, IslandLife
from model_server.pathways.scheduling.summary import Summary, answered_handles

Buffer = bytes | memoryview


class Reply(NamedTuple):
    """An answer as a worker sends it: a serialized IfrtResponse and the host buffers it fills.

    No bytes: this host of its island has no part in the answer.
    """

    response: bytes
    buffers: Mapping[int, Buffer]


NOBODY = Reply(b"", {})


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


class Gathering:
    """Answers of the parts of one request."""

    def __init__(self, parts: int, fault: Fault | None) -> None:
        self._missing = parts
        self._replies: list[tuple[IslandLife, Any]] = []
        self.fault = fault  # the first there was
        self.only_lost = fault is None or fault.code == DATA_LOSS

    def answered(self, life: IslandLife, outcome: Reply | Fault) -> bool:
        """Take the answer of one part; True with the last one."""
        self._missing -= 1
        if not isinstance(outcome, Fault):
            response = IfrtResponse.FromString(outcome.response)
            self._replies.append((life, response))
            status = response.response_metadata.status
            outcome = Fault(status.code, status.message)
        if outcome.code:
            self.fault = self.fault or outcome
            self.only_lost = self.only_lost and outcome.code == DATA_LOSS
        return not self._missing

    def handles(self, summary: Summary) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the handles that the workers chose, by island."""
        return tuple(
            (life.island, answered_handles(getattr(response, summary.response), summary.row))
            for life, response in self._replies
        )
