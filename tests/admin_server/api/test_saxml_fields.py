"""Saxml's wire in full: every field of its requests is known, every one of its replies is filled.

The numbers are written out by hand from Saxml's interface: the contract, not a copy of ours.
"""

import pytest

from admin_server.api.server import unknown_fields
from sax.proto import admin_pb2
from sax.types import JoinedServer, ServerInfo, Traffic
from sax.wire.rpc import open_channel
from sax.wire.servers import decode_joined, encode_joined
from tests.admin_server.api.test_server import M, model, publish
from tests.admin_server.conftest import eventually
from tests.admin_server.fake_modelet import modelet_pb2
from tests.each_case import each_case

_MODEL = {1: "b", 2: "b", 3: "b", 4: "v", 5: "b", 6: "b", 7: "b", 8: "b", 9: "b"}
SAXML = {
    admin_pb2.Model: _MODEL,
    admin_pb2.PublishRequest: {2: "b"},
    admin_pb2.UpdateRequest: {1: "b"},
    admin_pb2.UnpublishRequest: {1: "b"},
    admin_pb2.ListRequest: {1: "b"},
    admin_pb2.StatsRequest: {1: "b"},
    admin_pb2.WatchLocRequest: {1: "b", 3: "b", 2: "v"},
    admin_pb2.WaitForReadyRequest: {1: "b", 2: "v"},
    admin_pb2.JoinRequest: {1: "b", 3: "b", 4: "b", 2: "b"},
    admin_pb2.ModelServer: {1: "v", 2: "v", 3: "b", 4: "b"},
}


@each_case("message", SAXML)
def test_every_field_that_saxmls_clients_send_is_known(message):
    data = b"".join(
        bytes([number << 3 | 2, 0]) if kind == "b" else bytes([number << 3, 1])
        for number, kind in SAXML[message].items()
    )
    assert list(unknown_fields(message.FromString(data))) == []


async def test_a_model_that_saxmls_client_read_and_sends_back_is_taken(stub, admin):
    """Go keeps what it does not know, and sends the method names and the uuid it was told."""
    await publish(stub)
    (listed,) = (await stub.List(admin_pb2.ListRequest(model_id=M))).published_models
    listed.model.requested_num_replicas = 3
    listed.model.method_names.append("lm.generate")
    await stub.Update(admin_pb2.UpdateRequest(model=listed.model))
    spec = admin.cell.find(M).spec
    assert (spec.replicas, spec.version) == (3, listed.model.uuid.hex())


@pytest.mark.extended
async def test_a_server_is_listed_with_what_it_did_in_the_last_minute(stub, start_modelet):
    modelet = await start_modelet()
    modelet.stats = [
        modelet_pb2.GetStatusResponse.MethodStats(
            method="lm.generate",
            pending_reqs=2,
            errors_per_second=0.5,
            successes_per_second=3,
            mean_latency_on_success_per_second=0.25,
        ),
        modelet_pb2.GetStatusResponse.MethodStats(
            method="lm.score",
            pending_reqs=1,
            successes_per_second=1,
            mean_latency_on_success_per_second=1.25,
        ),
    ]
    modelet.dormant = True
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    seen = len(modelet.polls)
    await eventually(lambda: any(modelet.polls[seen:]))
    server = None
    while server is None or not server.pending_requests:
        (server,) = (await stub.List(admin_pb2.ListRequest())).servers
    # Between two askings the figures stay.
    seen = len(modelet.polls)
    while len(modelet.polls) < seen + 12:
        (server,) = (await stub.List(admin_pb2.ListRequest())).servers
        assert server.pending_requests == 3
    assert server.is_dormant
    assert (server.pending_requests, server.errors_per_second) == (3, 0.5)
    assert (server.successes_per_second, server.mean_latency_in_seconds) == (4, 0.5)
    assert server.last_join_ms > 0
    assert dict(server.loaded_models) == {M: 2}


async def test_method_stats_are_asked_for_at_one_poll_in_ten(start_modelet):
    modelet = await start_modelet()
    await eventually(lambda: len(modelet.polls) > 20)
    assert modelet.polls[:21] == [number % 10 == 0 for number in range(21)]


def test_what_a_server_did_crosses_the_wire_whole():
    server = JoinedServer(
        ServerInfo(address="127.0.0.1:1"), 1.0, dormant=True, traffic=Traffic(3, 0.5, 4.0, 0.25)
    )
    assert decode_joined(encode_joined(server)) == server


async def test_a_watch_from_a_number_of_the_future_gets_the_full_set(stub, admin):
    await publish(stub)
    request = admin_pb2.WatchLocRequest(model_id=M, admin_server_id=admin.cell.id, seqno=2**31 - 1)
    assert (await stub.WatchLoc(request, timeout=60)).result.has_fullset


async def test_a_generic_client_publishes_without_any_field_of_ours(admin):
    """As bytes: model id, path, checkpoint and replicas, by Saxml's numbers alone."""
    fields = model()
    inner = b"".join(
        bytes([number << 3 | 2, len(text)]) + text.encode()
        for number, text in ((1, fields.model_id), (2, "llama"), (3, "/one"))
    ) + bytes([4 << 3, 1])
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        await channel.unary_unary("/sax.Admin/Publish")(bytes([0x12, len(inner)]) + inner)
    assert admin.cell.find(M).spec.replicas == 1
