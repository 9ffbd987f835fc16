"""A client that calls a dispatcher directly, without gRPC, and waits for answers by their op."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from model_server.pathways.protocol import IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.dispatcher import Dispatcher
from tests.model_server.pathways import requests


class DispatcherClient:
    """One session."""

    def __init__(self, dispatcher: Dispatcher, *, weight: float = 1.0) -> None:
        self.dispatcher = dispatcher
        self.session: ClientSession = dispatcher.open(name="test", weight=weight)
        self._answers: dict[int, Any] = {}
        self._op = self._handle = 0

    async def send(self, request: Any) -> int:
        """Send a request; returns its op."""
        self._op += 1
        request.request_metadata.op_id = self._op
        await self.dispatcher.serve(self.session, request.SerializeToString())
        return self._op

    async def answer(self, op_id: int) -> Any:
        """Wait for the answer of an op."""
        async with asyncio.timeout(60):
            while op_id not in self._answers:
                for raw in await self.session.answers():
                    response = IfrtResponse.FromString(raw)
                    self._answers[response.response_metadata.op_id] = response
        return self._answers.pop(op_id)

    async def ask(self, request: Any) -> Any:
        return await self.answer(await self.send(request))

    def handle(self) -> int:
        self._handle += 1
        return self._handle

    async def put(self, values: Sequence[int], device: int) -> int:
        """Make an array; returns its handle."""
        array, buffer = self.handle(), self.handle()
        self.session.buffers.store(buffer, np.array(values, np.int32).tobytes())
        await self.send(requests.put(array, device, buffer))
        return array

    async def compile(self, device: int) -> int:
        """Compile a program for a device; returns its handle."""
        request = requests.request("compile", compile_options=requests.options([device]))
        return (await self.ask(request)).compile_response.loaded_executable_handle

    async def execute(self, program: int, *arguments: int) -> int:
        """Start a program; returns the handle of its result."""
        result = self.handle()
        await self.send(requests.execute(program, arguments, [result]))
        return result

    async def copy(self, array: int, device: int) -> int:
        result = self.handle()
        await self.send(
            requests.request(
                "copy_arrays", array_handles=[array], device_ids=[device], result_handles=[result]
            )
        )
        return result

    async def fetch(self, array: int) -> list[int] | str:
        """Return an array's numbers, or the text of its error."""
        buffer = self.handle()
        request = requests.request(
            "copy_to_host_buffer", array_handle=array, host_buffer_handle=buffer
        )
        status = (await self.ask(request)).response_metadata.status
        if status.code:
            return f"{status.code}: {status.message}"
        return np.frombuffer(self.session.buffers.take([buffer])[buffer], np.int32).tolist()
