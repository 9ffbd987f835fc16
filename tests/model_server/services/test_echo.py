"""No error of a model server repeats more than 200 characters of a request."""

from __future__ import annotations

import pytest

from sax.proto import custom_pb2, lm_pb2, modelet_pb2, prefill_pb2, tokens_pb2
from sax.types import GenerateRequest
from sax.wire.tokens import encode_generate
from tests.grpc_echo import GARBAGE, echoes, repeats
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, serving

FILES = [each.DESCRIPTOR for each in (custom_pb2, lm_pb2, modelet_pb2, prefill_pb2, tokens_pb2)]
VALID = {"model_path": "fake", "checkpoint_path": "None", "method_name": "lm.generate"}


@pytest.mark.parametrize("model", [MODEL, "/sax/test/other"])
async def test_no_error_repeats_a_long_text(model: str) -> None:
    async with serving(FakeModels()) as served:
        assert await echoes(served.channel, FILES, {**VALID, "model_key": model}) == []


@pytest.mark.parametrize("text", [GARBAGE, "x" * 5000])
async def test_no_failure_on_a_token_stream_repeats_a_long_text(text: str) -> None:
    async with serving(FakeModels()) as served:
        stream = served.tokens.Stream()
        request = encode_generate(1, GenerateRequest(model_id=MODEL, prompt="hi"))
        request.model_key = text
        await stream.write(tokens_pb2.ToServer(generate=request))
        (chunk,) = (await stream.read()).chunks
        assert chunk.failure.text
        assert not repeats(f"{chunk.failure.text} {chunk.failure.param}")
        assert text[:201] not in f"{chunk.failure.text} {chunk.failure.param}"
        stream.cancel()
