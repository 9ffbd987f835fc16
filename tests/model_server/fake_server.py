"""A whole model server on free ports, with arithmetic models, and what tests call it with."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest

from model_server.config import ModelServerConfig
from model_server.models.registry import check_overrides
from model_server.process.server import ModelServer
from model_server.serving.lm_servable import LmServable
from sax.auth.credentials import OPENER_KEY, call_metadata, presented_token
from sax.errors import SaxError
from sax.proto import (
    common_pb2,
    control_pb2_grpc,
    custom_pb2_grpc,
    lm_pb2,
    lm_pb2_grpc,
    modelet_pb2_grpc,
    tokens_pb2,
    tokens_pb2_grpc,
)
from sax.types import GenerateRequest, ModelSpec, SamplingParams, TokenChunk
from sax.wire import rpc
from sax.wire.models import encode_load
from sax.wire.rpc import to_sax_error
from sax.wire.tokens import decode_chunk, decode_failure, encode_generate
from tests.model_server.fake_model import MODEL_PATHS, FakeModels
from tests.model_server.waiting import until as until  # other folders take it from here

MODEL, OTHER = "/sax/test/fake", "/sax/test/other"


@dataclass
class Served:
    """A running server and its stubs."""

    server: ModelServer
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.modelet = modelet_pb2_grpc.ModeletStub(self.channel)
        self.lm = lm_pb2_grpc.LMServiceStub(self.channel)
        self.control = control_pb2_grpc.ControlStub(self.channel)
        self.custom = custom_pb2_grpc.CustomServiceStub(self.channel)
        self.tokens = tokens_pb2_grpc.TokenServiceStub(self.channel)

    async def load(
        self,
        model_id: str = MODEL,
        path: str = "fake",
        version: str = "",
        acls: Mapping[str, str] | None = None,
    ) -> None:
        spec = ModelSpec(
            model_id=model_id,
            model_path=path,
            checkpoint="None",
            replicas=0,
            version=version,
            acls=acls or {},
        )
        load = encode_load(spec)
        load.term = 1  # an admin server of ours
        await self.modelet.Load(load, metadata=call_metadata())

    def servable(self, model_id: str = MODEL) -> LmServable:
        """What the server holds of this language model."""
        servable = self.server.servables.get(model_id)
        assert isinstance(servable, LmServable)
        return servable

    async def metric(self, name: str, model: str | None = MODEL) -> float:
        """One figure, as a scraper reads it over HTTP."""
        url = f"http://{self.server.metrics_address}/metrics"
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        prefix = f'{name}{{model="{model}"}} ' if model else f"{name} "
        return next(
            float(line.removeprefix(prefix))
            for line in body.decode().splitlines()
            if line.startswith(prefix)
        )


@asynccontextmanager
async def serving(models: FakeModels, **changes: object) -> AsyncIterator[Served]:
    """A server with one model loaded; everything is given back at the end."""
    settings = {"port": 0, "metrics_port": -1, "sax_cell": "/sax/test", "drain_seconds": 0.1}
    # Nobody listens on port 9: this server goes without an admin, and does not mind.
    config = ModelServerConfig(admin="127.0.0.1:9", **(settings | changes))  # pyright: ignore
    server = ModelServer(
        config,
        models,
        model_paths=lambda: MODEL_PATHS,
        compiles_while_serving=lambda: 0,
        check_overrides=check_overrides,
    )
    await server.start()
    channel = rpc.open_channel(server.address)
    try:
        served = Served(server, channel)
        await served.load()
        yield served
    finally:
        models.release.set()
        models.batches.set()
        await server.stop()
        await channel.close()
        assert all(runner.closed for runner in models.runners)


@dataclass
class Stream:
    """One connection of TokenService: sends questions, sorts what comes back."""

    served: Served
    chunks: dict[int, list[TokenChunk]] = field(default_factory=dict)
    failures: dict[int, SaxError] = field(default_factory=dict)
    messages: int = 0
    opener: str = ""  # the token of who opens the connection

    def __post_init__(self) -> None:
        metadata = ((OPENER_KEY, self.opener),) if self.opener else ()
        self.call = self.served.tokens.Stream(metadata=metadata)

    async def ask(
        self,
        id: int,
        prompt: str = "hi",
        model: str = MODEL,
        request_id: str = "",
        **sampling: object,
    ) -> None:
        """Send one question; greedy unless told otherwise."""
        params = SamplingParams(**({"temperature": 0.0} | sampling))  # pyright: ignore
        question = GenerateRequest(
            model_id=model, prompt=prompt, sampling=params, request_id=request_id
        )
        message = tokens_pb2.ToServer(generate=encode_generate(id, question))
        message.generate.token = presented_token()
        await self.call.write(message)

    async def cancel(self, id: int) -> None:
        await self.call.write(tokens_pb2.ToServer(cancel=tokens_pb2.Cancel(id=id)))

    async def read(self) -> list[int]:
        """Take in one message; the ids it has news of. [] at the end of the stream."""
        message = await self.call.read()
        if message is grpc.aio.EOF:
            return []
        self.messages += 1
        for chunk in message.chunks:
            if chunk.HasField("failure"):
                self.failures[chunk.id] = decode_failure(chunk)
            else:
                self.chunks.setdefault(chunk.id, []).append(decode_chunk(chunk))
        return [chunk.id for chunk in message.chunks]

    async def until_over(self, *ids: int) -> None:
        """Read until these requests have ended."""
        while not all(map(self.is_over, ids)):
            assert await self.read(), "the stream ended before its requests did"

    def is_over(self, id: int) -> bool:
        chunks = self.chunks.get(id)
        return id in self.failures or bool(chunks and chunks[-1].finish_reason)

    def text(self, id: int) -> str:
        return "".join(chunk.text for chunk in self.chunks.get(id, []))

    def tokens(self, id: int) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks.get(id, []) for token in chunk.token_ids)


async def error_of(call: Awaitable[object]) -> Exception:
    """The SaxError a call ends with, as a client rebuilds it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return to_sax_error(caught.value, "the server")


def lm_request(text: str = "hi", **items: float) -> lm_pb2.GenerateRequest:
    """A question to LMService, with extra inputs."""
    extra = common_pb2.ExtraInputs(items=items)
    return lm_pb2.GenerateRequest(model_key=MODEL, text=text, extra_inputs=extra)
