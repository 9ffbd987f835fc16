"""Calls beside the devices: what waits for their results, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from model_server.loading.beside_devices.weight_reading import ENCODER, READ_WEIGHTS, WeightReading
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import Leaf
from model_server.pathways import protocol as messages
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.executor import Executor
from sax.errors import CheckpointError, NotFound
from tests.model_server.pathways import requests

NUMBERS = np.arange(4, dtype=np.float32)
READING = WeightReading(
    checkpoint="/m", size=(1, 2), model_path="auto", overrides={}, stage=None, mesh=(1, 1, 1),
    first=0, count=1,
)  # fmt: skip


class SlowReader:
    """Gives one array, or an error, once it may."""

    def __init__(self, shape: tuple[int, ...] = (4,), error: Exception | None = None) -> None:
        self.may = threading.Event()
        self.wanted: Callable[[], bool] | None = None
        self._shape = shape
        self._error = error

    def plan(self, asked: WeightReading, devices: Sequence[Any]) -> Any:
        if isinstance(self._error, NotFound):
            raise self._error
        leaf = Leaf("", self._shape, np.dtype(np.float32), (None,))
        return SimpleNamespace(leaves=[leaf], layout=own_device())

    def read(
        self, asked: WeightReading, planned: Any, wanted: Callable[[], bool]
    ) -> list[jax.Array]:
        self.wanted = wanted
        self.may.wait(30)
        if self._error is not None:
            raise self._error
        return [jax.device_put(NUMBERS, SingleDeviceSharding(jax.devices()[0]))]


class Client:
    """Sends requests to an executor and keeps the answers."""

    def __init__(self, reader: Any) -> None:
        self.executor = Executor(IslandDevices(jax.devices()[:1], first_id=6), reader=reader)
        self._answers: dict[int, tuple[threading.Event, list[Any]]] = {}

    def send(self, op_id: int, request: Any) -> None:
        come, kept = self._answers[op_id] = threading.Event(), []

        def answer(response: Any, buffers: Any) -> None:
            kept.extend((response, buffers))
            come.set()

        self.executor.execute(1, request, op_id << 20, {}, answer)

    def answer(self, op_id: int, wait_s: float = 30) -> Any:
        """None: it has not come."""
        come, kept = self._answers[op_id]
        return kept[0] if come.wait(wait_s) else None

    def buffer(self, op_id: int) -> Any:
        """Return the one host buffer that an answer brings."""
        (found,) = self._answers[op_id][1][1].values()
        return found

    def call(self, text: bytes, name: str = READ_WEIGHTS) -> Any:
        """Compile a call of one result."""
        spec = requests.spec(requests.on_device(6))
        spec.dtype.kind = messages.DTypeProto.Kind.Value("KIND_F32")
        spec.shape.dims.append(4)
        program = requests.call(name, [6], text, [spec])
        self.send(1, requests.request("compile", 1, program=program))
        return self.answer(1)

    def run(self) -> None:
        """Begin the call: its result is array 9."""
        response = self.call(ENCODER.encode(READING))
        assert not response.response_metadata.status.code, response
        handle = response.compile_response.loaded_executable_handle
        self.send(2, requests.execute(handle, [], [9], 2))
        assert not self.answer(2).response_metadata.status.code


def status(response: Any) -> tuple[int, str]:
    return (response.response_metadata.status.code, response.response_metadata.status.message)


def test_a_read_that_lasts_holds_up_nobody_but_who_waits_for_it() -> None:
    reader = SlowReader()
    client = Client(reader)
    client.run()
    client.send(3, requests.request("check_value_ready", 3, value_handles=[9]))
    client.executor.receive(1, 8, [6], None).fail(Fault(14, "not this one"))
    client.send(4, requests.request("check_value_ready", 4, value_handles=[8]))
    assert status(client.answer(4)) == (14, "not this one")
    assert client.answer(3, 0.05) is None
    reader.may.set()
    assert status(client.answer(3)) == (0, "")
    client.send(5, requests.request("copy_to_host_buffer", 5, array_handle=9, host_buffer_handle=7))
    assert client.answer(5) is not None


def test_an_error_of_a_read_is_found_where_its_array_is_waited_for() -> None:
    reader = SlowReader(error=CheckpointError("/m: tensor a is torn"))
    client = Client(reader)
    client.run()
    reader.may.set()
    client.send(3, requests.request("check_value_ready", 3, value_handles=[9]))
    assert status(client.answer(3)) == (9, "island 0: /m: tensor a is torn")


def test_what_is_fetched_before_it_is_there_comes_later_or_fails_later() -> None:
    for error in (None, CheckpointError("torn")):
        reader = SlowReader(error=error)
        client = Client(reader)
        client.run()
        parts = {"array_handle": 9, "result_handles": [10]}
        client.send(3, requests.request("disassemble_into_single_device_arrays", 3, **parts))
        client.send(
            4, requests.request("fully_replicated_shard", 4, array_handle=9, result_handle=11)
        )
        assert [status(client.answer(op_id)) for op_id in (3, 4)] == [(0, "")] * 2
        for op_id, handle in enumerate((9, 10, 11), 5):
            fetch = {"array_handle": handle, "host_buffer_handle": handle}
            client.send(op_id, requests.request("copy_to_host_buffer", op_id, **fetch))
            assert client.answer(op_id, 0.02) is None
        reader.may.set()
        wanted = (9, "island 0: torn") if error else (0, "")
        assert [status(client.answer(op_id)) for op_id in (5, 6, 7)] == [wanted] * 3
        if error is None:
            assert {bytes(client.buffer(op_id)) for op_id in (5, 6, 7)} == {NUMBERS.tobytes()}
        client.send(8, requests.request("delete_array", 8, array_handle=[9]))
        assert status(client.answer(8)) == (0, "")


def test_a_read_that_is_not_offered_is_refused_before_it_begins() -> None:
    asked = ENCODER.encode(READING)
    cases: list[tuple[Any, bytes, int, str]] = [
        (None, asked, 12, "start it with --checkpoint_root"),
        (SlowReader(error=NotFound("/m is gone")), asked, 5, "island 0: /m is"),
        (SlowReader((5,)), asked, 12, "float32[5] here and float32[4]"),
        (SlowReader(), b"{}", 3, "words that are not known"),
        (SlowReader(), b"\x80\x05", 3, "words that are not known"),
    ]
    for reader, text, code, told in cases:
        found, said = status(Client(reader).call(text))
        assert (found, told in said) == (code, True), said


def test_functions_of_clients_are_not_run_by_a_worker_without_a_sidecar() -> None:
    found, said = status(Client(SlowReader()).call(b"\x80\x05", "f"))
    assert (found, "not run beside" in said) == (12, True)


def test_reading_learns_that_its_session_has_ended() -> None:
    reader = SlowReader()
    client = Client(reader)
    client.run()
    while reader.wanted is None:
        threading.Event().wait(0.01)
    assert reader.wanted()
    client.executor.forget(1)
    assert not reader.wanted()
    reader.may.set()
