"""Counts what a decoding client sends and waits for; a process with one device, and its client.

python -m tests.model_server.islands.round_trips CHECKPOINT TOKENS [OVERRIDES]

Decodes one stream twice; the second time, nothing but fetches is answered before the stream is
complete. Prints a `RoundTrips` as JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process

import jax
import msgspec

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.roles.local import InProcessHost
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.executor import Executor
from tests.model_server.islands.decode_client import Decoded
from tests.model_server.islands.holding_dispatcher import HoldingDispatcher

CLIENT = "tests.model_server.islands.decode_client"


class RoundTrips(msgspec.Struct):
    """Two decodings of the same prompt, the second without answers."""

    answered: Decoded
    unanswered: Decoded
    sent: dict[str, int]  # in the second: requests by kind, and calls by method
    held: int  # answers that were kept back


async def counted(checkpoint: str, tokens: int, overrides: list[str]) -> RoundTrips:
    dispatcher = HoldingDispatcher()
    dispatcher.island(0).begin([InProcessHost(Executor(IslandDevices(jax.devices())))])
    dispatcher.survey()
    server = GrpcServer(dispatcher.service())
    port = await server.start("127.0.0.1:0", None)
    target = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{port}"}
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", CLIENT, checkpoint, *overrides,
        env={**os.environ, **target}, stdin=PIPE, stdout=PIPE,
    )  # fmt: skip
    assert await _line(client) == b"ready\n"
    answered = await _decoded(client, tokens)
    dispatcher.begin()
    unanswered = await _decoded(client, tokens)
    sent = dict(dispatcher.counts)
    return RoundTrips(answered, unanswered, sent, dispatcher.let_go())


async def _decoded(client: Process, tokens: int) -> Decoded:
    assert client.stdin is not None
    client.stdin.write(f"1 {tokens}\n".encode())
    return msgspec.json.decode(await _line(client), type=Decoded)


async def _line(client: Process) -> bytes:
    assert client.stdout is not None
    return await client.stdout.readline()


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    checkpoint, tokens, *overrides = sys.argv[1:]
    made = asyncio.run(counted(checkpoint, int(tokens), overrides))
    sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the executor may wait


if __name__ == "__main__":
    main()
