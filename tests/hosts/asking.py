"""Loading a model on a server that joined no cell, and asking it, as admin and locator would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from sax.client.connection import ModelServerConnection
from sax.errors import SaxError
from sax.proto import modelet_pb2
from sax.types import GenerateRequest, Message, SamplingParams
from sax.wire import rpc

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_k=40, seed=7, max_tokens=16, ignore_eos=True)
SPMD = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
# The recipe of 175 billion parameters, shrunk: two layers, eight heads of eight numbers.
SHRUNK: Mapping[str, Any] = {
    "NUM_LAYERS": 2,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 256,
    "NUM_HEADS": 8,
    "DIMS_PER_HEAD": 8,
    "VOCAB_SIZE": 512,
    "ICI_MESH_SHAPE": None,
}
_LOAD_S = 300.0
_ANSWER_S = 120.0


def load(address: str, model: str, path: str, checkpoint: str = "None", **overrides: Any) -> None:
    """Returns once it is loaded; raises why it is not."""
    request = modelet_pb2.LoadRequest(
        model_key=model,
        model_path=path,
        checkpoint_path=checkpoint,
        overrides={key: json.dumps(value) for key, value in overrides.items()},
    )
    asyncio.run(_call(address, "Load", request, modelet_pb2.LoadResponse))


def unload(address: str, model: str) -> None:
    """Returns once its memory is free."""
    request = modelet_pb2.UnloadRequest(model_key=model)
    asyncio.run(_call(address, "Unload", request, modelet_pb2.UnloadResponse))


def tokens(
    address: str, model: str, *samplings: SamplingParams, prompt: int | tuple[Message, ...] = 20
) -> list[Any]:
    """The answers to one prompt, asked all at once: tokens, or the error that ended each.

    prompt: how many tokens, or a chat.
    """
    asked = tuple(range(5, 5 + prompt)) if isinstance(prompt, int) else prompt

    async def ask() -> list[Any]:
        connection = ModelServerConnection(address)
        try:
            answers = (_answer(connection, model, how, asked) for how in samplings)
            return await asyncio.gather(*answers)
        finally:
            await connection.close()

    return asyncio.run(ask())


async def _answer(
    connection: ModelServerConnection,
    model: str,
    sampling: SamplingParams,
    prompt: tuple[int, ...] | tuple[Message, ...],
) -> list[int] | SaxError:
    request = GenerateRequest(model_id=model, prompt=prompt, sampling=sampling)
    found: list[int] = []
    try:
        async for chunk in connection.generate(request, _ANSWER_S):
            found += chunk.token_ids
    except SaxError as error:
        return error
    return found


async def _call(address: str, method: str, request: Any, reply: Any) -> None:
    channel = rpc.open_channel(address)
    try:
        await rpc.call(
            channel, f"/sax.Modelet/{method}", request, reply, peer=address, timeout_s=_LOAD_S
        )
    finally:
        await channel.close()
