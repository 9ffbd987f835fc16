"""Model servers as processes of their own, with the real loader: one decodes, others prefill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc.aio

from sax.proto import modelet_pb2_grpc, prefill_pb2_grpc, tokens_pb2, tokens_pb2_grpc
from sax.types import GenerateRequest, ModelSpec, SamplingParams, TokenChunk
from sax.wire import rpc
from sax.wire.models import encode_load
from sax.wire.tokens import decode_chunk, decode_failure, encode_generate
from tests.demo_model import COMPILE_CACHE, ROOT

MODEL = "/sax/test/spmd"
SPEC = ModelSpec(
    model_id=MODEL,
    model_path="saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
    checkpoint="None",
    replicas=0,
    overrides={
        "NUM_LAYERS": "2",
        "MODEL_DIMS": "64",
        "HIDDEN_DIMS": "128",
        "NUM_HEADS": "2",
        "DIMS_PER_HEAD": "32",
        "VOCAB_SIZE": "512",
        "DTYPE": '"float32"',
        "INPUT_SEQ_LEN": "512",
    },
)
FLAGS = ("--slots=4", "--page_size=16", "--max_context=640", "--drain_seconds=1")
_START_S = 120.0
_LOAD_S = 400.0  # a real model compiled anew on a busy machine


@dataclass
class Child:
    """One model server; its log is read all the time, so that it never blocks."""

    process: asyncio.subprocess.Process
    log: list[str]
    address: str = ""
    metrics_address: str = ""

    def __post_init__(self) -> None:
        self.reading = asyncio.create_task(self._read())
        self.listening = asyncio.Event()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode(errors="replace")
            self.log.append(line)
            if found := re.search(r"metrics on http://(\S+)/metrics", line):
                self.metrics_address = found[1]
            if found := re.search(r"model server listening on (\S+:\d+)", line):
                self.address = found[1]
                self.listening.set()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        return "".join(self.log)


@contextlib.asynccontextmanager
async def server(*flags: str, port: int = 0) -> AsyncIterator[Child]:
    """A model server without an admin, until the block ends."""
    words = (
        *(() if any(flag.startswith("--sax_cell") for flag in flags) else ("--prefill",)),
        "--sax_cell=",
        f"--port={port}",
        "--metrics_port=0",
        f"--jax_cache_dir={COMPILE_CACHE}",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "model_server", *words, *FLAGS, *flags),
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stderr=asyncio.subprocess.PIPE,
    )
    child = Child(process, [])
    try:
        async with asyncio.timeout(_START_S):
            await child.listening.wait()
        yield child
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await child.reading


class Caller:
    """Asks one server."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.channel = rpc.open_channel(child.address)
        self.modelet = modelet_pb2_grpc.ModeletStub(self.channel)
        self.prefill = prefill_pb2_grpc.PrefillServiceStub(self.channel)
        self._tokens = tokens_pb2_grpc.TokenServiceStub(self.channel)

    async def load(self, spec: ModelSpec = SPEC) -> None:
        load = encode_load(spec)
        load.term = 1  # an admin server of ours
        await self.modelet.Load(load, timeout=_LOAD_S)

    async def ask(self, prompt: Sequence[int], **sampling: object) -> list[TokenChunk]:
        """The chunks of one answer, greedy unless told otherwise. Raises SaxError."""
        call = self._tokens.Stream(timeout=60)
        await self.start(call, prompt, **sampling)
        chunks: list[TokenChunk] = []
        while not chunks or chunks[-1].finish_reason is None:
            message = await call.read()
            assert message is not grpc.aio.EOF, self.child.text()
            for chunk in message.chunks:
                if chunk.HasField("failure"):
                    raise decode_failure(chunk)
                chunks.append(decode_chunk(chunk))
        call.cancel()
        return chunks

    async def start(self, call: object, prompt: Sequence[int], **sampling: object) -> None:
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | sampling))  # pyright: ignore
        question = GenerateRequest(model_id=MODEL, prompt=tuple(prompt), sampling=params)
        message = tokens_pb2.ToServer(generate=encode_generate(1, question))
        await call.write(message)  # pyright: ignore

    def stream(self) -> object:
        return self._tokens.Stream(timeout=60)

    async def metric(self, name: str, model: str | None = MODEL) -> float:
        """One figure, as a scraper reads it."""
        host, port = self.child.metrics_address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        body = (await reader.read()).decode()
        writer.close()
        wanted = f'{name}{{model="{model}"}} ' if model else f"{name} "
        found = [line for line in body.splitlines() if line.startswith(wanted)]
        assert found, f"no metric {name}\n{body}"
        return float(found[0].rpartition(" ")[2])

    async def until(self, name: str, least: float) -> float:
        """Wait for a figure to reach this."""
        async with asyncio.timeout(60):
            while True:
                if (value := await self.metric(name)) >= least:
                    return value
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self.channel.close()


def tokens(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]
