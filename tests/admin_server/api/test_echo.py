"""No error of the admin server repeats more than 200 characters of a request."""

import pytest

from sax.proto import admin_pb2, cell_pb2
from sax.wire.rpc import open_channel
from tests.grpc_echo import echoes

M = "/sax/test/m"
VALID = {
    "model_id": M,
    "model_path": "llama",
    "checkpoint_path": "/one",
    "requested_num_replicas": 1,
    "address": "127.0.0.1:1",
}


@pytest.mark.extended
@pytest.mark.parametrize("model_id", [M, "/sax/test"])
async def test_no_error_repeats_a_long_text(admin, model_id):
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        files = [admin_pb2.DESCRIPTOR, cell_pb2.DESCRIPTOR]
        assert await echoes(channel, files, {**VALID, "model_id": model_id}) == []
