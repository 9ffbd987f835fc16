"""Operators' calls against an admin that holds a dict."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from sax.client import AsyncClient
from sax.errors import (
    AdminUnavailable,
    DeadlineExceeded,
    InvalidName,
    InvalidRequest,
    ModelExists,
    ModelNotFound,
    NotFound,
    QueueFull,
    UnsupportedParameter,
)
from sax.types import (
    GenerateRequest,
    JoinedServer,
    Message,
    ModelSpec,
    PublishedModel,
    ReplicaStatus,
    SamplingParams,
    SaxmlSamples,
    ServableStatus,
    ServerInfo,
    ServerTypeStat,
    Tokenized,
)
from tests.each_case import each_case
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

NEW = "/sax/test/new"


async def test_what_is_published_is_listed_with_all_it_was_given(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    await client.publish(NEW, "llama", "/models/a.gguf", 2, {"SLOTS": "8", "NAME": '"x"'})
    spec = (await client.list(NEW)).spec
    assert spec == ModelSpec(
        model_id=NEW,
        model_path="llama",
        checkpoint="/models/a.gguf",
        replicas=2,
        overrides={"SLOTS": "8", "NAME": '"x"'},
        version="ab" * 16,
    )
    assert [model.spec.model_id for model in await client.list_all("/sax/test")] == [MODEL, NEW]


async def test_a_second_publish_is_model_exists(client: AsyncClient) -> None:
    with pytest.raises(ModelExists, match="published already"):
        await client.publish(MODEL, "llama", "None")


@each_case(
    "arguments, error, param",
    [
        (("new", "llama", "None"), InvalidName, "model"),
        ((NEW, "2b", "None"), InvalidName, "model_path"),
        ((NEW, "llama", "a b"), InvalidName, "checkpoint"),
        ((NEW, "llama", "None", -1), InvalidRequest, "replicas"),
    ],
)
async def test_a_malformed_publish_is_refused_before_it_is_sent(
    arguments: tuple[str, str, str],
    error: type[InvalidRequest],
    param: str,
    client: AsyncClient,
    admin: FakeAdmin,
) -> None:
    with pytest.raises(error) as caught:
        await client.publish(*arguments)
    assert caught.value.param == param
    assert not admin.calls


async def test_an_update_keeps_what_it_does_not_name(client: AsyncClient, admin: FakeAdmin) -> None:
    await client.publish(NEW, "llama", "/a", 2, {"A": "1"})
    await client.update(NEW, acls={"lm.generate": "acl/all"}, admin_acl="acl/ops")
    await client.update(NEW, checkpoint="/b")
    await client.update(NEW, replicas=0)
    spec = admin.models[NEW].spec
    assert (spec.model_path, spec.checkpoint, spec.replicas) == ("llama", "/b", 0)
    assert (spec.overrides, spec.acls) == ({"A": "1"}, {"lm.generate": "acl/all"})
    assert spec.admin_acl == "acl/ops"
    await client.update(NEW, overrides={})
    assert admin.models[NEW].spec.overrides == {}


async def test_an_unpublished_model_is_gone(client: AsyncClient) -> None:
    await client.unpublish(MODEL)
    for call in (client.list(MODEL), client.unpublish(MODEL), client.update(MODEL, replicas=1)):
        with pytest.raises(ModelNotFound):
            await call


async def test_an_admin_without_our_errors_gets_the_nearest_names_from_its_list(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    admin.fail = [NotFound("not found")]
    with pytest.raises(ModelNotFound, match="nearest names are /sax/test/counter"):
        await client.list("/sax/test/counters")


async def test_servers_and_stats_are_listed(client: AsyncClient, admin: FakeAdmin) -> None:
    server = JoinedServer(ServerInfo(address="a:1", incarnation="x"), last_seen_s=12.5)
    admin.servers = [server]
    assert await client.servers() == [server]
    stats = await client.stats()
    assert stats.types == (ServerTypeStat("cpu", "1", 1),)
    assert stats.servers_by_model_path == {"llama": 1}


async def test_an_overview_has_models_and_servers_of_one_time(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    admin.servers = [JoinedServer(ServerInfo(address="a:1", incarnation="x"), last_seen_s=12.5)]
    overview = await client.overview()
    assert overview.servers == tuple(admin.servers)
    assert list(overview.models) == await client.list_all()


async def test_an_admin_that_does_not_tell_of_rights_is_told_apart() -> None:
    older = FakeAdmin(hears_demand=False)
    async with AsyncClient(await older.start()) as client:
        with pytest.raises(UnsupportedParameter):
            await client.rights()
    await older.stop()


async def test_reads_outlive_a_moment_without_an_admin_and_changes_are_sent_once(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    admin.fail = [AdminUnavailable("changing leaders"), AdminUnavailable("changing leaders")]
    assert len(await client.list_all()) == 1
    assert admin.calls == ["List"] * 3
    admin.fail = [AdminUnavailable("changing leaders")]
    with pytest.raises(AdminUnavailable, match="changing leaders"):
        await client.publish(NEW, "llama", "None")
    assert admin.calls == ["List"] * 3 + ["Publish"]


@pytest.mark.extended
async def test_attempts_to_read_are_bounded(client: AsyncClient, admin: FakeAdmin) -> None:
    admin.fail = [AdminUnavailable("changing leaders") for _ in range(50)]
    with pytest.raises(AdminUnavailable):
        await client.list_all()
    assert admin.calls == ["List"] * 4


async def test_a_silent_port_is_admin_unavailable_with_its_address() -> None:
    admin = FakeAdmin()
    address = await admin.start()
    await admin.stop()
    async with AsyncClient(address) as client:
        with pytest.raises(AdminUnavailable, match=f"{address} does not answer"):
            await client.publish(NEW, "llama", "None")


async def test_the_admin_is_looked_up_again_when_it_moved(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = FakeAdmin()
    monkeypatch.setenv("SAX_ADMIN", await gone.start())
    async with AsyncClient() as client:
        assert await client.list_all() == []
        await gone.stop()
        monkeypatch.setenv("SAX_ADMIN", admin.address)
        assert len(await client.list_all()) == 1


def test_a_malformed_admin_address_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        AsyncClient("nowhere")


async def test_waiting_ends_when_enough_replicas_are_ready(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    waiting = asyncio.create_task(client.wait_for_ready(MODEL, 2))
    while "WaitForReady" not in admin.calls:  # noqa: ASYNC110 - the fake's calls have no event
        await asyncio.sleep(0.005)
    admin.ready(MODEL, "a:1")
    assert not waiting.done()
    admin.ready(MODEL, "a:1", "b:2")
    await waiting


async def test_waiting_in_vain_says_why(client: AsyncClient, admin: FakeAdmin) -> None:
    replica = ReplicaStatus("a:1", ServableStatus.FAILED, "the checkpoint is truncated")
    admin.models[MODEL] = PublishedModel(admin.models[MODEL].spec, (replica,))
    with pytest.raises(DeadlineExceeded, match="the checkpoint is truncated"):
        await client.wait_for_ready(MODEL, timeout_s=0.05)
    with pytest.raises(ModelNotFound):
        await client.wait_for_ready(NEW, timeout_s=60)


async def test_watching_tells_the_replicas_as_they_come_and_go(
    client: AsyncClient, admin: FakeAdmin
) -> None:
    admin.ready(MODEL, "a:1")
    events = client.watch(MODEL)
    assert [str(await anext(events)) for _ in range(2)] == ["Reset", "+ a:1"]
    admin.ready(MODEL, "b:2")
    assert [str(await anext(events)) for _ in range(2)] == ["Reset", "+ b:2"]
    await events.aclose()
    with pytest.raises(ModelNotFound):
        await anext(client.watch(NEW))


async def test_texts_and_chats_are_tokenized_by_a_replica(
    client: AsyncClient, admin: FakeAdmin, replica: FakeReplica
) -> None:
    admin.ready(MODEL, replica.address)
    assert await client.tokenize(MODEL, "ab") == ((97, 98), 2048)
    assert await client.tokenize(MODEL, (Message("user", "b"),)) == ((98,), 2048)
    assert await client.tokenize(MODEL, "b", add_special_tokens=True) == ((94, 98), 2048)
    texts = await client.tokenize_texts(MODEL, "ab", add_special_tokens=False)
    assert texts == Tokenized((97, 98), 2048, ("a", "b"))
    assert await client.detokenize(MODEL, texts.ids) == "ab"
    with pytest.raises(InvalidRequest, match="tokens cannot be sent"):
        await client.detokenize(MODEL, [2**40])


async def test_saxmls_calls_carry_their_extra_inputs(
    client: AsyncClient, admin: FakeAdmin, replica: FakeReplica
) -> None:
    admin.ready(MODEL, replica.address)
    assert await client.score(MODEL, "a", ["b", "cde"], {"temperature": 0.5}) == [-1.0, -3.0]
    assert dict(replica.extra.items) == {"temperature": 0.5}
    assert await client.saxml_generate(MODEL, "abc", {"eos_id": [2.0]}) == [("cba", -1.5)]
    assert list(replica.extra.tensors["eos_id"].values) == [2.0]
    counted = await client.saxml_generate_counted(MODEL, "abc")
    assert counted == SaxmlSamples([("cba", -1.5)], 3, 2)
    stream = client.saxml_generate_stream(MODEL, "hi")
    items = [(m.items[0].text, m.items[0].prefix_len) async for m in stream]
    assert items == [("h", 0), ("i", 1)]


@pytest.fixture
async def asking(client: AsyncClient, admin: FakeAdmin, replica: FakeReplica) -> AsyncClient:
    """A client whose model has a ready replica."""
    admin.ready(MODEL, replica.address)
    return client


async def test_texts_and_token_ids_are_embedded_and_counted(asking: AsyncClient) -> None:
    assert await asking.embed(MODEL, ["ab", (7, 8, 9), []]) == [[2.0, 0.5], [3.0, 0.5], [0.0, 0.5]]
    counted = await asking.embed_counted(MODEL, ["ab", "c"])
    assert (len(counted.vectors), counted.prompt_tokens) == (2, 3)


async def test_an_input_that_no_message_can_hold_is_named(asking: AsyncClient) -> None:
    for bad in ("\ud800", (2**40,), (1.5,)):
        with pytest.raises(InvalidRequest, match="input 1 cannot be sent"):
            await asking.embed(MODEL, ["ok", bad])  # type: ignore[list-item]


async def test_a_full_replica_is_passed_on_to_the_caller_of_embed(
    asking: AsyncClient, replica: FakeReplica
) -> None:
    replica.fail = [QueueFull("full", retry_after_s=1)]
    with pytest.raises(QueueFull):
        await asking.embed(MODEL, ["ab"])


async def test_the_phases_of_requests_are_those_that_their_servers_tell(
    asking: AsyncClient, replica: FakeReplica
) -> None:
    assert await asking.phases(["a"]) == {}, "no request runs"
    replica.hold.clear()
    sampling = SamplingParams(max_tokens=3)
    request = GenerateRequest(model_id=MODEL, prompt="hi", sampling=sampling, request_id="a")
    async with aclosing(asking.generate(request)) as chunks:
        await anext(chunks)
        assert await asking.phases(["a", "b"]) == {"a": "decode"}
        assert await asking.phases([]) == {}


async def test_custom_requests_are_bytes_both_ways(asking: AsyncClient) -> None:
    assert await asking.custom(MODEL, b"\x00\xff", "m") == b"m:\xff\x00"
    assert await asking.custom(MODEL, b"") == b":"
    with pytest.raises(InvalidRequest, match="a custom request needs bytes"):
        await asking.custom(MODEL, "text")  # type: ignore[arg-type]


async def test_saxmls_embed_gives_one_vector(asking: AsyncClient) -> None:
    assert await asking.saxml_embed(MODEL, "abcd") == [4.0, 0.5]
    with pytest.raises(InvalidRequest, match="the text cannot be sent"):
        await asking.saxml_embed(MODEL, "\ud800")
