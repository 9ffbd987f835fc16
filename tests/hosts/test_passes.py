"""Passes over whole inputs on a mesh of two devices, and beside adapters."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sax.client.connection import ModelServerConnection
from sax.proto import lm_pb2, tokens_pb2
from tests.hosts.asking import GREEDY, load, tokens, unload
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.adapter_folder import write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.models.family_cases import golden_of
from tests.model_server.tiny_bert import tiny_bert

pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

FLAGS = ("--slots=2", "--max_context=64", "--page_size=16")
BASE, ADAPTER, BERT = "/sax/test/base", "/sax/test/adapter", "/sax/test/bert"
PASSES: dict[str, Any] = {
    "DTYPE": "float32",
    "MAX_ADAPTERS": 1,
    "TASKS": ["generate", "embed", "gradient"],
    "PASS_CONTEXT": 32,
    "QUERY_FORMAT": "raw",
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": ["final_norm.scale"],
}
IDS = tuple(range(5, 25))


def asked(address: str, path: str, request: Any, reply: Any) -> Any:
    async def ask() -> Any:
        connection = ModelServerConnection(address)
        try:
            return await connection.call(path, request, reply, 120.0)
        finally:
            await connection.close()

    return asyncio.run(ask())


def vector(address: str, model: str, ids: tuple[int, ...] = IDS) -> np.ndarray:
    given = [tokens_pb2.EmbedInput(tokens=tokens_pb2.Tokens(ids=ids))]
    request = tokens_pb2.EmbedRequest(model_key=model, inputs=given)
    path = "/sax.tokens.TokenService/Embed"
    found = asked(address, path, request, tokens_pb2.EmbedResponse)
    return np.asarray(found.vectors[0].values)


def gradient(address: str) -> np.ndarray:
    request = lm_pb2.GradientRequest(model_key=BASE, prefix="The colour", suffix=" of the sky")
    path = "/sax.server.lm.LMService/Gradient"
    found = asked(address, path, request, lm_pb2.GradientResponse)
    (values,) = found.gradients.values()
    return np.asarray([*found.score, *values.values])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("passes")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    base = write_tiny(room / "base", **sizes)
    write_adapter(room / "adapter", base)
    (room / "bert").mkdir()
    tiny_bert(room / "bert")
    return room


def found_on(folder: Path, devices: int) -> dict[str, Any]:
    """Every answer of a server with this many devices, before and after an adapter is loaded."""
    found: dict[str, Any] = {}
    with Gang(folder, *FLAGS, f"--cpu_devices={devices}", count=1) as gang:
        gang.wait_until_serving()
        load(gang.address, BERT, "auto", str(folder / "bert"))
        found["bert"] = vector(gang.address, BERT, tuple(golden_of("bert")["prompt"].tolist()))
        unload(gang.address, BERT)
        load(gang.address, BASE, "auto", str(folder / "base"), **PASSES)
        found["before"] = vector(gang.address, BASE), gradient(gang.address)
        load(gang.address, ADAPTER, "lora", str(folder / "adapter"), BASE=BASE)
        found["after"] = vector(gang.address, BASE), gradient(gang.address)
        found["tokens"] = [tokens(gang.address, each, GREEDY)[0] for each in (BASE, ADAPTER)]
        assert "compiled while serving" not in gang.logs(0)
        if devices > 1:
            assert f"'model': {devices}" in gang.logs(0), "the language model lies on all devices"
    return found


def test_passes_give_the_same_on_two_devices_and_beside_an_adapter(folder: Path) -> None:
    one, two = found_on(folder, 1), found_on(folder, 2)
    for found in (one, two):
        np.testing.assert_allclose(found["bert"], golden_of("bert")["pooled"], atol=1e-5)
        for before, after in zip(found["before"], found["after"], strict=True):
            np.testing.assert_array_equal(before, after)  # the base's own, adapter or not
    for alone, shared in zip(one["before"], two["before"], strict=True):
        np.testing.assert_allclose(shared, alone, rtol=1e-3, atol=1e-5)
    assert one["tokens"] == two["tokens"]
    assert one["tokens"][0] != one["tokens"][1]
