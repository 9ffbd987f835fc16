"""Who may call which method, and who may load: a whole model server that asks its callers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from model_server.flags.command_line import make_config
from sax.auth.credentials import acting_as
from sax.auth.security import Security
from sax.errors import (
    InvalidRequest,
    NotLoaded,
    PermissionDenied,
    SaxError,
    StaleRevision,
    Unauthenticated,
)
from sax.proto import common_pb2, custom_pb2, lm_pb2, modelet_pb2, tokens_pb2
from sax.types import ModelSpec, ServableInfo
from sax.wire.models import encode_load
from sax.wire.rpc import to_sax_error
from sax.wire.servers import decode_status
from tests.identities import Identities
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, Stream, lm_request, serving

VERSION = "ab" * 16
EVERYONE = ("", "stranger", "admin", "alice", "bob")
UNKNOWN = {"", "stranger"}

Ask = Callable[[str], Awaitable[object]]


@asynccontextmanager
async def guarded(
    tmp_path: Path,
    path: str = "fake",
    models: FakeModels | None = None,
    **acls: str,
) -> AsyncGenerator[tuple[Served, Identities, FakeModels]]:
    """A server that `admin` may load on, with MODEL under these lists (dots are underscores)."""
    people = Identities(tmp_path, "admin", "alice", "bob")
    security = Security(tokens=str(people.path), admin_acl="admin")
    models = models or FakeModels()
    with acting_as(people.tokens["admin"]):
        async with serving(models, security=security) as served:
            await served.load(MODEL, path, VERSION, lists(acls))
            with acting_as(""):
                yield served, people, models


def lists(acls: Mapping[str, str]) -> dict[str, str]:
    return {method.replace("__", "."): acl for method, acl in acls.items()}


async def outcome(call: Awaitable[object]) -> type[SaxError] | None:
    try:
        await call
    except grpc.aio.AioRpcError as exc:
        return type(to_sax_error(exc, "the server"))
    return None


async def refused(ask: Ask) -> set[str]:
    """Everyone asks; who is turned away."""
    found: set[str] = set()
    for who in EVERYONE:
        error = await outcome(ask(who))
        if error is not None:
            assert error is (Unauthenticated if who in UNKNOWN else PermissionDenied), who
            found.add(who)
    return found


def of(served: Served, people: Identities) -> dict[str, Ask]:
    """Every way to call the language model MODEL."""

    async def stream(who: str) -> None:
        async for _ in served.lm.GenerateStream(lm_request(), metadata=people.metadata(who)):
            pass

    def unary(call: Any, request: Any) -> Ask:
        return lambda who: call(request, metadata=people.metadata(who))

    score = lm_pb2.ScoreRequest(model_key=MODEL, prefix="a", suffix=["b"])
    tokenize = tokens_pb2.TokenizeRequest(model_key=MODEL, text="a")
    return {
        "lm.generate": unary(served.lm.Generate, lm_request()),
        "lm.generate_stream": stream,
        "lm.score": unary(served.lm.Score, score),
        "tokenize": unary(served.tokens.Tokenize, tokenize),
    }


async def test_without_lists_everyone_who_is_known_may_call_everything(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (served, people, _):
        for name, ask in of(served, people).items():
            assert await refused(ask) == UNKNOWN, name


async def test_a_list_guards_its_method_and_no_other(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__score="alice") as (served, people, _):
        asks = of(served, people)
        assert await refused(asks["lm.score"]) == {*UNKNOWN, "admin", "bob"}
        assert await refused(asks["lm.generate"]) == UNKNOWN
        assert await refused(asks["lm.generate_stream"]) == UNKNOWN


async def test_a_list_of_whole_answers_guards_streamed_ones_and_tokenizing_too(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, _):
        asks = of(served, people)
        for name in ("lm.generate", "lm.generate_stream", "tokenize"):
            assert await refused(asks[name]) == {*UNKNOWN, "admin", "bob"}, name
        assert await refused(asks["lm.score"]) == UNKNOWN


async def test_two_lists_keep_whole_and_streamed_answers_apart(tmp_path: Path) -> None:
    acls = {"lm__generate": "alice", "lm__generate_stream": "bob"}
    async with guarded(tmp_path, **acls) as (served, people, _):
        asks = of(served, people)
        assert await refused(asks["lm.generate"]) == {*UNKNOWN, "admin", "bob"}
        assert await refused(asks["lm.generate_stream"]) == {*UNKNOWN, "admin", "alice"}


async def test_a_refusal_names_who_what_and_whom_to_ask(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.lm.Generate(lm_request(), metadata=people.metadata("bob"))
        text = str(to_sax_error(caught.value, "the server"))
        assert f"bob may not call lm.generate of {MODEL}" in text
        assert "sax setacl" in text
        assert "alice" not in text


async def test_the_requests_of_one_stream_are_each_for_their_own_user(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__generate_stream="alice") as (served, people, _):
        stream = Stream(served, opener=people.tokens["admin"])
        for id, who in enumerate(EVERYONE):
            with acting_as(people.tokens.get(who, who)):
                await stream.ask(id)
        await stream.until_over(*range(len(EVERYONE)))
        kinds = {EVERYONE[id]: type(error) for id, error in stream.failures.items()}
        assert kinds == {
            "": Unauthenticated,
            "stranger": Unauthenticated,
            "admin": PermissionDenied,
            "bob": PermissionDenied,
        }
        assert stream.text(EVERYONE.index("alice"))


async def test_a_stream_may_be_opened_in_someones_name_but_a_bad_one_may_not(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, _):
        message = tokens_pb2.Generate(id=1, model_key=MODEL, text="hi")
        message.sampling.max_tokens, message.sampling.top_p = 2, 1.0

        async def ask(who: str) -> None:
            call = served.tokens.Stream(metadata=people.metadata(who))
            await call.write(tokens_pb2.ToServer(generate=message))
            reply = await call.read()
            call.cancel()
            assert reply.chunks[0].HasField("failure") == (who != "alice")

        await ask("alice")
        await ask("bob")
        for who, why in (("stranger", "not valid"), ("", "requires authentication")):
            call = served.tokens.Stream(metadata=people.metadata(who))
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert why in await call.details()


async def test_an_embedder_is_guarded_by_either_way_to_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, "fake.Embedder", lm__embed="alice") as (served, people, _):
        saxml = lm_pb2.EmbedRequest(model_key=MODEL, text="a")
        ours = tokens_pb2.EmbedRequest(model_key=MODEL, inputs=[tokens_pb2.EmbedInput(text="a")])
        ways: list[Ask] = [
            lambda who: served.lm.Embed(saxml, metadata=people.metadata(who)),
            lambda who: served.tokens.Embed(ours, metadata=people.metadata(who)),
        ]
        for way in ways:
            assert await refused(way) == {*UNKNOWN, "admin", "bob"}


async def test_a_custom_method_is_guarded_by_its_name_or_the_star(tmp_path: Path) -> None:
    people_of = {"upper": "alice", "*": "bob"}
    async with guarded(tmp_path, "fake.Custom", **people_of) as (served, people, _):

        def calling(method: str) -> Ask:
            request = custom_pb2.CustomRequest(model_key=MODEL, request=b"x", method_name=method)
            return lambda who: served.custom.Custom(request, metadata=people.metadata(who))

        assert await refused(calling("upper")) == {*UNKNOWN, "admin", "bob"}
        assert await refused(calling("reverse")) == {*UNKNOWN, "admin", "alice"}


async def test_a_list_for_a_method_that_is_not_there_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path, "fake.Custom", uper="alice", reverse="bob") as (served, people, _):
        assert "lists for uper, which it does not serve; it serves upper, reverse" in caplog.text
        caplog.clear()
        await set_acls(served, people, {"upper": "alice", "*": "bob"})
        assert "does not serve" not in caplog.text


async def test_only_the_admin_may_load_unload_and_update(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (served, people, models):
        spec = ModelSpec(model_id="/sax/test/x", model_path="fake", checkpoint="None", replicas=0)
        loads = len(models.loads)
        for call, request in (
            (served.modelet.UpdateLoaded, modelet_pb2.UpdateLoadedRequest(model_key=MODEL)),
            (served.modelet.Load, encode_load(spec)),
            (served.modelet.Unload, modelet_pb2.UnloadRequest(model_key="/sax/test/x")),
        ):

            async def ask(who: str, call: Any = call, request: Any = request) -> None:
                await call(request, metadata=people.metadata(who))

            assert await refused(ask) == {*UNKNOWN, "alice", "bob"}
        assert len(models.loads) == loads + 1
        for call, request in (
            (served.modelet.Save, modelet_pb2.SaveRequest(model_key=MODEL, checkpoint_path="/x")),
            (served.modelet.Export, modelet_pb2.ExportRequest(model_key=MODEL, export_path="/x")),
        ):
            who = {
                each: await outcome(call(request, metadata=people.metadata(each)))
                for each in EVERYONE
            }
            denied = {each for each, error in who.items() if error is PermissionDenied}
            assert denied == {"alice", "bob"}
            assert who["admin"] is InvalidRequest, "nothing is written without --checkpoint_roots"

        async def look(who: str) -> None:
            request = modelet_pb2.GetStatusRequest()
            await served.modelet.GetStatus(request, metadata=people.metadata(who))

        assert await refused(look) == UNKNOWN


async def set_acls(
    served: Served,
    people: Identities,
    acls: Mapping[str, str],
    version: str = VERSION,
    checkpoint: str = "",
) -> None:
    request = modelet_pb2.UpdateLoadedRequest(
        model_key=MODEL,
        acls=common_pb2.AccessControlLists(items=acls),
        uuid=bytes.fromhex(version),
        checkpoint_path=checkpoint,
    )
    await served.modelet.UpdateLoaded(request, metadata=people.metadata("admin"))


async def info(served: Served, people: Identities) -> ServableInfo:
    metadata = people.metadata("admin")
    reply = await served.modelet.GetStatus(modelet_pb2.GetStatusRequest(), metadata=metadata)
    return decode_status(reply).servables[0]


async def test_a_change_of_lists_is_in_force_at_once_and_loads_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, models):
        generate = of(served, people)["lm.generate"]
        loads, before = list(models.loads), await info(served, people)
        assert before.acls == {"lm.generate": "alice"}
        for told in itertools.product((VERSION, "cd" * 16, ""), ("", "None")):
            await set_acls(served, people, {"lm.generate": "bob"}, *told)
            assert await refused(generate) == {*UNKNOWN, "admin", "alice"}, told
            after = await info(served, people)
            assert after.acls == {"lm.generate": "bob"}, told
            assert (models.loads, after.version) == (loads, VERSION), told
            await set_acls(served, people, {}, *told)
            assert await refused(generate) == UNKNOWN, told


async def test_what_runs_when_its_user_is_shut_out_may_end(tmp_path: Path) -> None:
    slow = FakeModels(delay_s=0.01)
    async with guarded(tmp_path, models=slow, lm__generate="alice") as (served, people, _):
        stream = Stream(served, opener=people.tokens["admin"])
        with acting_as(people.tokens["alice"]):
            await stream.ask(1, max_tokens=50)
            await stream.read()
            await set_acls(served, people, {"lm.generate": "bob"})
            await stream.ask(2)
            await stream.until_over(1, 2)
        assert len(stream.tokens(1)) == 50
        assert isinstance(stream.failures[2], PermissionDenied)


async def test_loading_the_same_version_again_brings_its_lists_into_force(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, models):
        loads = list(models.loads)
        with acting_as(people.tokens["admin"]):
            await served.load(MODEL, "fake", VERSION, {"lm.generate": "bob"})
        assert models.loads == loads
        assert await refused(of(served, people)["lm.generate"]) == {*UNKNOWN, "admin", "alice"}


async def test_lists_given_while_a_model_loads_are_in_force_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (served, people, models):
        with acting_as(people.tokens["admin"]):
            loading = asyncio.create_task(served.load(MODEL, "fake.Held", "cd" * 16, {"*": "bob"}))
            while (await info(served, people)).version != "cd" * 16:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await set_acls(served, people, {"*": "alice"}, "cd" * 16)
        models.release.set()
        await loading
        assert await refused(of(served, people)["lm.generate"]) == {*UNKNOWN, "admin", "bob"}


@pytest.mark.parametrize("version", [VERSION, "cd" * 16])
async def test_an_update_that_is_malformed_or_of_something_else_changes_nothing(
    tmp_path: Path, version: str
) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, models):
        loads = list(models.loads)
        for acls, checkpoint, kind, param in (
            ({"lm.genrate": "bob"}, "", InvalidRequest, "acls"),
            ({"lm.generate": "a b"}, "", InvalidRequest, "acls"),
            ({"lm.generate": "bob"}, "/another", StaleRevision, "checkpoint_path"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await set_acls(served, people, acls, version, checkpoint)
            error = to_sax_error(caught.value, "the server")
            assert isinstance(error, kind)
            assert error.param == param
        assert (await info(served, people)).acls == {"lm.generate": "alice"}
        assert models.loads == loads
        gone = modelet_pb2.UpdateLoadedRequest(model_key="/sax/test/gone")
        call = served.modelet.UpdateLoaded(gone, metadata=people.metadata("admin"))
        assert await outcome(call) is NotLoaded


async def test_a_saxml_admin_loads_another_checkpoint_with_its_lists(tmp_path: Path) -> None:
    async with guarded(tmp_path, lm__generate="alice") as (served, people, models):
        await set_acls(served, people, {"lm.generate": "bob"}, "", "/another")
        assert models.loads[-1] == "/another"
        after = await info(served, people)
        assert (after.version, after.acls) == ("", {"lm.generate": "bob"})


async def test_health_answers_whoever_asks(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (served, _, _):
        stub = health_pb2_grpc.HealthStub(served.channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_flags_that_would_lock_everyone_out_are_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--tokens", "f", "--admin_acl", "admin", "--slots", "3"]
    config = make_config(flags)
    assert (config.security.admins.names, config.slots) == ({"admin"}, 3)
    with pytest.raises(SystemExit):
        make_config(["--tokens", "f"])
    assert "--admin_acl names nobody" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_an_open_model_server_that_others_reach_warns_loudly(
    caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(FakeModels(), host=host):
        assert ("OPEN TO EVERYONE" in caplog.text) == warns


@pytest.mark.parametrize(
    ("host", "roots", "warns"),
    [("127.0.0.1", (), False), ("0.0.0.0", (), True), ("0.0.0.0", ("/models",), False)],
)
async def test_a_model_server_that_others_reach_warns_without_checkpoint_roots(
    caplog: pytest.LogCaptureFixture, host: str, roots: tuple[str, ...], warns: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(FakeModels(), host=host, checkpoint_roots=roots):
        assert ("--checkpoint_roots" in caplog.text) == warns


async def test_a_closed_model_server_without_a_token_says_that_it_may_not_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path):
        assert "OPEN TO EVERYONE" not in caplog.text
        assert "SAX_TOKEN" in caplog.text
