"""An executor that does arithmetic in place of a device: arrays are lists of numbers.

A program adds 1 to the sum of its arguments. It answers at once, or when told to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from model_server.pathways.protocol import RESPONSES, IfrtResponse, InitResponse
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.transfers import TransferPart

Answer = Callable[[Any, Mapping[int, bytes]], None]


class Coming:
    """An array that another island sends in one part."""

    def __init__(self, arrays: dict[int, Any], handle: int) -> None:
        self._arrays, self._handle = arrays, handle
        self.complete = False

    def arrive(self, part: TransferPart) -> None:
        self._arrays[self._handle] = np.frombuffer(part.shards[0], np.int32)
        self.complete = True

    def fail(self, fault: Fault) -> None:
        self._arrays[self._handle] = fault
        self.complete = True


class Broken(Exception):
    """An array that is an error."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _sum(arguments: Sequence[Any]) -> Any:
    """Return 1 more than the sum, or the first error among the arguments."""
    faults = (each for each in arguments if isinstance(each, Fault))
    fault = next(faults, None)
    return 1 + sum(arguments) if fault is None else fault


class ArithmeticExecutor:
    """Devices are numbers; nothing is computed on them."""

    def __init__(self, devices: Sequence[int], *, holds: bool = True) -> None:
        """holds: whether this host of its island has the data."""
        self._devices = devices
        self.holds = holds
        self.sessions: dict[int, dict[int, Any]] = {}
        self.order: list[tuple[int, str]] = []  # session, kind
        self.futures = True  # of deletions; False: they are done when they are answered
        self.paused = False
        self._late: list[Callable[[], None]] = []

    def describe(self) -> Any:
        made = InitResponse(platform_name="cpu", runtime_type="proxy")
        for device in self._devices:
            made.all_devices.add(id=device, default_memory_id=device, memory_ids=[device])
            made.memories.add(id=device, memory_space_kind="device", device_ids=[device])
        made.addressable_device_ids.extend(self._devices)
        made.primary_device_ids.extend(self._devices)
        return made

    def go_on(self) -> None:
        """Answer what came while paused."""
        self.paused = False
        for late in self._late:
            late()
        self._late.clear()

    def execute(
        self, session: int, request: Any, made: int, buffers: Mapping[int, bytes], answer: Answer
    ) -> None:
        kind = request.WhichOneof("request")
        self.order.append((session, kind))
        arrays = self.sessions.setdefault(session, {})
        response = IfrtResponse()
        told = getattr(response, RESPONSES[kind])
        told.SetInParent()
        filled: dict[int, bytes] = {}
        try:
            body = getattr(request, kind)
            getattr(self, f"_{kind}")(arrays, body, told, made, buffers, filled)
        except Broken as exc:
            response.response_metadata.status.code = exc.fault.code
            response.response_metadata.status.message = exc.fault.text
        except KeyError as exc:
            response.response_metadata.status.code = 5
            response.response_metadata.status.message = f"no handle {exc}"
        if kind == "copy_to_host_buffer_request" and not self.holds:
            answer(None, {})
        elif self.paused:
            self._late.append(lambda: answer(response, filled))
        else:
            answer(response, filled)

    def send(self, session: int, handle: int, deliver: Callable[[Any], None]) -> None:
        found = self.sessions.get(session, {}).get(handle)
        if found is None:
            deliver(Fault(5, f"no handle {handle}"))
        elif isinstance(found, Fault):
            deliver(found)
        else:
            deliver(TransferPart(4, found.shape, b"", {0: found.tobytes()}))

    def receive(
        self, session: int, handle: int, device_ids: Sequence[int], memory_kind: str | None
    ) -> Coming:
        return Coming(self.sessions.setdefault(session, {}), handle)

    def forget(self, session: int) -> None:
        self.sessions.pop(session, None)

    # The requests

    def _make_array_from_host_buffer_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        handle = body.array_handle or made
        arrays[handle] = np.frombuffer(buffers[body.host_buffer_handle], np.int32)
        told.array_handle = handle

    def _compile_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        arrays[made] = "program"
        told.loaded_executable_handle = made

    def _loaded_executable_metadata_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        """A program reuses its second argument, if it has one."""
        told.donated_input_indices.donated_input_indices.append(1)

    def _loaded_executable_execute_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        assert arrays[body.loaded_executable_handle] == "program"
        result = _sum([arrays[each] for each in body.args_handles])
        handles = list(body.result_array_handle)
        if not handles:
            handles = [made]
            told.outputs.add(array_handle=made)
        arrays.update(dict.fromkeys(handles, result))

    def _copy_to_host_buffer_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        found = arrays[body.array_handle]
        if isinstance(found, Fault):
            raise Broken(found)
        filled[body.host_buffer_handle] = found.tobytes()

    def _copy_arrays_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        for array, result in zip(body.array_handles, body.result_handles, strict=True):
            arrays[result] = arrays[array]

    def _check_value_ready_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        for handle in body.value_handles:
            arrays[handle]

    def _check_future_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        del arrays[body.future_handle]

    def _delete_array_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        for handle in body.array_handle:
            arrays[handle] = "deleted"
        if self.futures:
            arrays[made] = "future"
            told.deletion_future_handle = made

    def _destruct_array_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        for handle in body.array_handle:
            del arrays[handle]

    def _get_default_layout_request(
        self, arrays: Any, body: Any, told: Any, made: int, buffers: Any, filled: Any
    ) -> None:
        told.serialized_pjrt_layout = f"of device {body.device_id}".encode()
