"""A model server is asked at its address before it is believed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from admin_server.api.access import Access
from admin_server.cell.modelets import knowing_server
from admin_server.process import Running
from sax.auth.acl import Principal, parse_acl
from sax.auth.token_file import new_token, token_line
from sax.client import AsyncClient
from sax.errors import (
    CheckpointError,
    CheckpointNotFound,
    CheckpointUnreachable,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    PermissionDenied,
    Unavailable,
)
from sax.types import ModelSpec, ServableStatus, ServerInfo
from sax.weights import METHOD
from tests.admin_server.conftest import eventually


async def test_an_address_where_nobody_answers_is_not_joined(admin, start_modelet):
    there = await start_modelet()
    elsewhere = replace(there.info, address="127.0.0.1:9", incarnation="b" * 32)
    with pytest.raises(Unavailable, match="--advertise") as caught:
        await admin.cell.admit(elsewhere)
    assert caught.value.param == "address"
    assert [info.address for info in admin.cell.infos()] == [there.address]


async def test_the_address_of_another_server_is_refused(admin, start_modelet):
    there = await start_modelet()
    with pytest.raises(InvalidRequest, match="another model server"):
        await admin.cell.admit(replace(there.info, incarnation="b" * 32))
    assert [info.incarnation for info in admin.cell.infos()] == [there.incarnation]


async def test_a_restart_is_believed_before_the_connection_is_there_again(admin, start_modelet):
    there = await start_modelet()
    await there.stop()
    await admin.cell.admit(there.info)
    assert [info.incarnation for info in admin.cell.infos()] == [there.incarnation]
    await there.start()


async def test_a_heartbeat_is_taken_without_another_look(admin, start_modelet):
    there = await start_modelet()
    await there.cut_off()
    await admin.cell.admit(there.info)
    assert [info.address for info in admin.cell.infos()] == [there.address]
    await there.start()


async def test_a_server_that_refuses_to_talk_to_this_admin_server_is_there(
    admin, start_modelet, tmp_path: Path
):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("somebody", new_token()) + "\n")
    there = await start_modelet(tokens=tokens)
    assert [info.address for info in admin.cell.infos()] == [there.address]


M = "/sax/test/m"


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


@pytest.mark.virtual_time
async def test_publish_and_update_refuse_what_a_server_refuses(admin, start_modelet):
    modelet = await start_modelet()
    modelet.bad_override = "NONSENSE"
    bad = spec(overrides={"NONSENSE": "1"})
    with pytest.raises(InvalidRequest, match="NONSENSE") as refusal:
        await admin.cell.publish(bad)
    assert refusal.value.param == "overrides.NONSENSE"
    assert admin.cell.models() == []
    await admin.cell.publish(spec())
    with pytest.raises(InvalidRequest, match="NONSENSE"):
        await admin.cell.update(bad)
    assert admin.cell.find(M).spec.overrides == {}
    assert modelet.checks == 2  # a spec without overrides needs none


@pytest.mark.extended
@pytest.mark.virtual_time
async def test_a_bad_override_that_nobody_could_check_fails_once_and_is_not_retried(
    admin, start_modelet
):
    await admin.cell.publish(spec(model_path="own", overrides={"NONSENSE": "1"}))
    modelet = await start_modelet(paths=("own",))
    modelet.bad_override = "NONSENSE"
    await eventually(lambda: "not retried" in admin.cell.find(M).replicas[0].reason)
    (replica,) = admin.cell.find(M).replicas
    assert replica.status is ServableStatus.FAILED
    assert "unknown override 'NONSENSE'; it is not retried until" in replica.reason
    loads = modelet.calls.count(("load", M))
    await asyncio.sleep(120)  # twice the longest pause between two tries
    assert modelet.calls.count(("load", M)) == loads == 1
    await admin.cell.update(spec(model_path="own"))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


@pytest.mark.virtual_time
async def test_a_server_that_checks_nothing_lets_everything_pass(admin, start_modelet):
    modelet = await start_modelet()
    modelet.cannot_check = True
    await admin.cell.publish(spec(overrides={"ANY": "1"}))
    assert admin.cell.find(M).spec.overrides == {"ANY": "1"}


@pytest.mark.virtual_time
async def test_without_a_server_names_of_overrides_of_saxs_own_models_are_checked(admin):
    saxmls = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
    for path, key, hint in (
        (saxmls, "NUM_LAYER", "did you mean NUM_LAYERS?"),
        (saxmls.removeprefix("saxml.server."), "NO_SUCH", "unknown override 'NO_SUCH'"),
        (saxmls, "ROTARY_DIM", "unknown override 'ROTARY_DIM'"),
        ("llama", "NUM_CACHE_SLOT", "did you mean NUM_CACHE_SLOTS?"),
        ("whisper", "TEMPERATURE", "this model takes BATCH_SIZE"),
        ("auto", "NONSENSE", "unknown override 'NONSENSE'"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            await admin.cell.publish(spec(model_path=path, overrides={key: "2"}))
        assert (refusal.value.param, hint in refusal.value.text) == (f"overrides.{key}", True)
    assert admin.cell.models() == []
    good = {
        "NUM_LAYERS": "2",
        "BUCKET_KEYS": "[8]",
        "ram": "1e9",
        "PER_EXAMPLE_MAX_DECODE_STEPS": "2",
    }
    await admin.cell.publish(spec(model_path=saxmls, checkpoint="None", overrides=good))
    with pytest.raises(InvalidRequest, match="NUM_LAYERS"):
        await admin.cell.update(spec(model_path=saxmls, overrides={"NUM_LAYER": "2"}))


@pytest.mark.virtual_time
async def test_a_model_that_nobody_could_judge_is_listed_with_a_warning(admin, start_modelet):
    await admin.cell.publish(spec(model_path="lama", overrides={"OF_ITS_OWN": "2"}))
    (warning,) = admin.cell.find(M).warnings
    assert "did you mean llama?" in warning
    assert "checked by the model server that loads it" in warning
    await start_modelet(paths=("lama",))
    await eventually(lambda: not admin.cell.find(M).warnings)


def test_only_a_server_that_serves_the_path_and_answers_is_asked():
    infos = [ServerInfo(address=f"h:{n}", model_paths=p) for n, p in enumerate([("a",), ("b",)], 1)]
    assert knowing_server(spec(model_path="b"), infos, ()) == "h:2"
    assert knowing_server(spec(model_path="b"), infos, {"h:2"}) is None
    assert knowing_server(spec(model_path="c"), infos, ()) is None


HUB = "hf://acme/tiny"


@pytest.mark.virtual_time
async def test_a_hubs_checkpoint_is_recorded_with_the_commit_that_a_server_found(
    admin, start_modelet
):
    modelet = await start_modelet()
    await admin.cell.publish(spec(checkpoint=HUB))
    assert admin.cell.find(M).spec.checkpoint == f"{HUB}@c0ffee"
    modelet.pins = "@5ec0nd"
    # Nothing is asked for a checkpoint that stays: its commit stays, too.
    await admin.cell.update(spec(checkpoint=f"{HUB}@c0ffee", replicas=2))
    await admin.cell.update(spec(checkpoint=f"{HUB}@c0ffee", overrides={"ANY": "1"}))
    assert admin.cell.find(M).spec.checkpoint == f"{HUB}@c0ffee"
    await admin.cell.update(spec(checkpoint=HUB))
    assert admin.cell.find(M).spec.checkpoint == f"{HUB}@5ec0nd"


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [CheckpointNotFound, CheckpointUnreachable])
async def test_a_checkpoint_that_no_hub_gives_is_refused_at_publish(admin, start_modelet, error):
    modelet = await start_modelet()
    modelet.bad_checkpoint = error("no hub answers: set HF_ENDPOINT", param="checkpoint")
    with pytest.raises(error, match="set HF_ENDPOINT"):
        await admin.cell.publish(spec(checkpoint="acme/tiny"))
    assert admin.cell.models() == []
    await admin.cell.publish(spec(checkpoint="/a/path"))  # no hub is asked for it
    with pytest.raises(error):
        await admin.cell.update(spec(checkpoint=HUB))
    assert admin.cell.find(M).spec.checkpoint == "/a/path"


@pytest.mark.extended
@pytest.mark.virtual_time
async def test_a_load_that_no_hub_can_ever_serve_is_not_retried_and_one_without_network_is(
    admin, start_modelet
):
    await admin.cell.publish(spec(checkpoint=HUB))  # nobody is there to be asked
    modelet = await start_modelet()
    modelet.bad_checkpoint = CheckpointUnreachable("no hub answers")
    await eventually(lambda: modelet.calls.count(("load", M)) > 2)
    modelet.bad_checkpoint = CheckpointNotFound("there is no acme/tiny")
    await eventually(lambda: "not retried" in admin.cell.find(M).replicas[0].reason)
    loads = modelet.calls.count(("load", M))
    await asyncio.sleep(120)  # twice the longest pause between two tries
    assert modelet.calls.count(("load", M)) == loads


async def test_all_replicas_change_together_or_are_named(admin: Running, start_modelet) -> None:
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        with pytest.raises(ModelNotFound):
            await client.update_weights(M, "/two")
        servers = [await start_modelet() for _ in range(2)]
        await client.publish(M, "llama", "/one", 3)
        await client.wait_for_ready(M, 2, timeout_s=60)
        assert await client.update_weights(M, "/two", version="v2") == "v2"
        assert [(each.version, each.error) for each in await client.weights(M)] == [("v2", "")] * 2
        with pytest.raises(InvalidRequest, match="mode is 'later': choose wait, keep, recompute"):
            await client.pause(M, "later")
        torn = servers[0].address
        with pytest.raises(Unavailable, match=f"differ now.*{torn}: .*is torn"):
            await client.update_weights(M, torn, version="v3")
        assert sorted(each.version for each in await client.weights(M)) == ["v2", "v3"]
        with pytest.raises(CheckpointError, match="is torn"):
            await client.update_weights(M, "127.0.0.1")
        for version in ("5", "6"):
            with pytest.raises(Unavailable, match="differ now"):
                await client.update_weights(M, torn, version=version)
            await client.update_weights(M, "/two", version="4" if version == "5" else "")
        assert [each.version for each in await client.weights(M)] == ["7", "7"], "not 7 and 5"


async def test_a_model_without_a_ready_replica_has_no_weights_to_change(admin: Running) -> None:
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        await client.publish(M, "llama", "/one")
        with pytest.raises(ModelNotReady, match="no replica"):
            await client.sleep(M)


def spec_of(acls: dict[str, str]) -> ModelSpec:
    model = {"model_id": M, "model_path": "llama", "checkpoint": "/one"}
    return ModelSpec(**model, replicas=1, acls=acls, admin_acl="owner")


def test_the_right_to_change_weights_is_one_of_its_own() -> None:
    access = Access(enforced=True, cell="/sax/test", admins=parse_acl("root", "admin_acl"))
    open_to_all = {"*": "*", "lm.generate": "*", METHOD: "trainer"}
    spec = spec_of(open_to_all)

    def may(name: str, spec: ModelSpec) -> bool:
        with suppress(PermissionDenied):
            access.check_weights(Principal(name), spec)
            return True
        return False

    names = ("", "root", "owner", "trainer", "user")
    assert [may(name, spec) for name in names] == [False, True, True, True, False]
    unlisted = spec_of({"*": "*"})
    assert [may(name, unlisted) for name in names] == [False, True, True, False, False]
    access.check_weights(Principal("user"), None)  # it does not exist, which the caller reports
