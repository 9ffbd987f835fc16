"""The process: restores before it serves, steps down, stops, and survives kill -9."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from admin_server.__main__ import parse
from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.config import AdminConfig
from admin_server.leadership import LeadTiming, decode_membership
from admin_server.process import Running, running
from admin_server.storage.envelope import Series
from sax.client.location import admin_address
from sax.errors import NotLeading, SaxError
from sax.proto import admin_pb2, admin_pb2_grpc
from sax.storage.object_store import open_store
from sax.types import ModelSpec
from sax.wire.rpc import open_channel, to_sax_error
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet

ROOT = Path(__file__).parents[2]
QUICK = LeadTiming(beat_s=0.1, patience_s=0.6)


def spec(name: str = "m", **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=f"/sax/test/{name}", **settings)


@asynccontextmanager
async def process(
    fs_root: Path | str, *flags: str, env: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int]]:
    """A real `python -m admin_server` on free ports, and the port that its log tells."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "admin_server", "--port", "0", "--status_port", "0"),
        *("--fs_root", str(fs_root), "--snapshot_every", "7", *flags),
        cwd=ROOT,
        env=env,
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    try:
        while line := (await started.stderr.readline()).decode():
            told = re.search(r"admin server of /sax/test listening on 127\.0\.0\.1:(\d+)", line)
            if told:
                yield started, int(told[1])
                break
        else:
            pytest.fail("the process ended before it listened")
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@asynccontextmanager
async def serving(
    folder: Path, *flags: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, grpc.aio.Channel]]:
    """The process, and a connection to it."""
    async with (
        process(folder, *flags) as (started, port),
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield started, channel


async def publish_for_ever(stub: admin_pb2_grpc.AdminStub, acknowledged: set[str], who: int):
    """Publish names of this client, every third one unpublished again, until the server dies."""
    number = 0
    while True:
        name = f"/sax/test/m{who}-{number}"
        model = admin_pb2.Model(
            model_id=name, model_path="x", checkpoint_path="c", requested_num_replicas=1
        )
        try:
            await stub.Publish(admin_pb2.PublishRequest(model=model))
            acknowledged.add(name)
            if number % 3 == 0:
                acknowledged.discard(name)  # from here on it may be there or not
                await stub.Unpublish(admin_pb2.UnpublishRequest(model_id=name))
        except grpc.aio.AioRpcError:
            return name
        number += 1


@pytest.mark.extended
async def test_what_was_acknowledged_before_a_kill_9_is_there_after_the_restart(tmp_path):
    acknowledged: set[str] = set()
    unsure: set[str] = set()
    for life in range(2):
        async with serving(tmp_path) as (server, channel):
            stub = admin_pb2_grpc.AdminStub(channel)
            clients = [
                asyncio.ensure_future(publish_for_ever(stub, acknowledged, 10 * life + who))
                for who in range(3)
            ]
            target = len(acknowledged) + 15
            await eventually(lambda target=target: len(acknowledged) >= target)
            server.send_signal(signal.SIGKILL)
            unsure |= set(await asyncio.gather(*clients))
    async with serving(tmp_path) as (server, channel):
        reply = await admin_pb2_grpc.AdminStub(channel).List(admin_pb2.ListRequest())
        listed = {one.model.model_id for one in reply.published_models}
        assert listed - unsure == acknowledged - unsure
        assert acknowledged <= listed
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_in_order(tmp_path, number):
    async with process(tmp_path) as (server, _):
        server.send_signal(number)
        assert await server.wait() == 0


@pytest.mark.extended
async def test_a_harmed_log_ends_the_start_with_the_name_of_the_object(tmp_path, config):
    records = tmp_path / "sax/test/records"
    records.mkdir(parents=True)
    (records / f"{1:012d}").write_text("torn")
    ended = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "admin_server", "--port", "0", "--status_port", "-1"),
        *("--fs_root", str(tmp_path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await ended.communicate()
    assert ended.returncode == 1
    assert "sax/test/records/000000000001 is torn" in log.decode()


async def kept(config: AdminConfig, modelet: FakeModelet) -> None:
    """The stored membership has this server: the next leader will know it."""
    roster = Series(open_store(config.fs_root), config.cell, "roster")
    while True:
        newest = await roster.newest()
        if newest and modelet.address in [one.address for one in decode_membership(newest[1])[0]]:
            return
        await asyncio.sleep(0.02)


async def test_a_restarted_admin_finds_the_loaded_model_and_does_not_load_it_again(config):
    modelet = await FakeModelet().start()
    async with running(config, FAST) as first:
        await modelet.join(first.port)
        await first.cell.publish(spec())
        await eventually(lambda: first.cell.find("/sax/test/m").ready_replicas == 1)
    async with running(config, FAST) as second:
        await modelet.join(second.port)
        await eventually(lambda: second.cell.find("/sax/test/m").ready_replicas == 1)
    assert modelet.calls == [("load", "/sax/test/m")]
    await modelet.stop()


@pytest.mark.extended
async def test_a_new_leader_waits_for_a_silent_server_before_it_loads_elsewhere(config):
    """The empty server is there first; the one that has the model answers a moment later."""
    holder, empty = await FakeModelet().start(), await FakeModelet().start()
    async with running(config, FAST, QUICK) as first:
        await holder.join(first.port)
        await first.cell.publish(spec())
        await eventually(lambda: first.cell.find("/sax/test/m").ready_replicas == 1)
        await kept(config, holder)
    await holder.cut_off()
    async with running(config, replace(FAST, silence_s=60), QUICK) as second:
        await empty.join(second.port)
        await eventually(lambda: second.cell.servers())
        waiting = asyncio.ensure_future(second.cell.watch("/sax/test/m", "", 0, 20))
        await eventually(
            lambda: holder.address in second.cell.find("/sax/test/m").replicas[0].reason
        )
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await holder.start()
        assert (await waiting).values == (holder.address,)
    assert empty.calls == []
    await holder.stop()
    await empty.stop()


async def refusal_of(channel: grpc.aio.Channel, name: str) -> SaxError:
    """What the admin server says to a publish that it does not take."""
    model = admin_pb2.Model(
        model_id=name, model_path="x", checkpoint_path="c", requested_num_replicas=1
    )
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await admin_pb2_grpc.AdminStub(channel).Publish(admin_pb2.PublishRequest(model=model))
    return to_sax_error(refusal.value, "admin")


async def test_a_second_admin_follows_and_names_the_leader(config):
    patient = replace(QUICK, patience_s=60)  # else a beat that comes late makes another leader
    async with running(config, FAST, patient) as first, running(config, FAST, patient) as second:
        await first.cell.publish(spec())
        await eventually(lambda: second.role.leader)  # it may look before the first beat
        async with open_channel(f"127.0.0.1:{second.port}") as channel:
            error = await refusal_of(channel, "/sax/test/n")
        assert type(error) is NotLeading
        assert error.param == f"127.0.0.1:{first.port}"


async def test_a_follower_leads_at_once_when_the_leader_resigns(config):
    patient = replace(QUICK, patience_s=60)
    async with running(config, FAST, patient) as first:
        await first.cell.publish(spec())
        stack, second = await enter(running(config, FAST, patient))
        assert second.role.cell is None
    await eventually(lambda: second.role.cell is not None)
    assert set(second.cell.ledger.state.models) == {"/sax/test/m"}
    await stack.aclose()


async def enter(manager) -> tuple[AsyncExitStack, Running]:
    """Enter a context that outlives the one around it."""
    stack = AsyncExitStack()
    return stack, await stack.enter_async_context(manager)


@pytest.mark.extended
async def test_a_paused_leader_is_deposed_and_follows_when_it_wakes(tmp_path, config):
    config = replace(config, fs_root=str(tmp_path))
    # Each is patient for some beats of the other, which may come late on a busy machine.
    async with serving(tmp_path, "--beat_s", "1") as (old, channel):
        async with running(config, FAST, replace(QUICK, patience_s=3)) as new:
            assert new.role.cell is None
            old.send_signal(signal.SIGSTOP)
            await eventually(lambda: new.role.cell is not None)
            await new.cell.publish(spec())
            old.send_signal(signal.SIGCONT)
            error = await refusal_of(channel, "/sax/test/n")
            assert type(error) is NotLeading
            assert set(new.cell.ledger.state.models) == {"/sax/test/m"}
            while error.param != f"127.0.0.1:{new.port}":  # it says so once it has looked
                error = await refusal_of(channel, "/sax/test/n")
        assert old.returncode is None


async def test_a_new_leader_asks_the_servers_that_the_old_one_knew(config):
    """No server joins the second admin: it finds the loaded model by the stored membership."""
    modelet = await FakeModelet().start()
    async with running(config, FAST, QUICK) as first:
        await modelet.join(first.port)
        await first.cell.publish(spec())
        await eventually(lambda: first.cell.find("/sax/test/m").ready_replicas == 1)
        await kept(config, modelet)
    async with running(config, FAST, QUICK) as second:
        await eventually(lambda: second.cell.find("/sax/test/m").ready_replicas == 1)
    assert modelet.calls == [("load", "/sax/test/m")]
    await modelet.stop()


async def test_a_leader_that_stops_leaves_the_list_of_its_servers_as_it_is_then(config):
    """Else the next one would wait for servers that have left."""
    modelet = await FakeModelet().start()
    async with running(config, FAST, LeadTiming(beat_s=600, patience_s=1800)) as admin:
        await modelet.join(admin.port)
    await asyncio.wait_for(kept(config, modelet), 1)
    await modelet.stop()


async def test_the_location_is_written_where_clients_look(config, tmp_path, monkeypatch):
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    async with running(replace(config, sax_root=str(tmp_path / "root")), FAST) as admin:
        assert admin_address(str(tmp_path / "root")) == f"127.0.0.1:{admin.port}"


def test_the_windows_of_autoscaling_are_flags():
    config = parse(["--scale_up_s", "1", "--scale_down_s", "2.5", "--scale_idle_s", "3"])
    assert config.scaling == ScalingTiming(up_s=1, down_s=2.5, idle_s=3)


async def test_a_location_that_cannot_be_written_yet_is_written_later(
    config, tmp_path, monkeypatch
):
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    for wait in ("_LOCATION_S", "_LOCATION_RETRY_S"):
        monkeypatch.setattr(f"admin_server.process.{wait}", 0.1)
    root = tmp_path / "root"
    root.write_text("in the way")
    async with running(replace(config, sax_root=str(root)), FAST) as admin:
        assert admin.role.cell is not None
        root.unlink()
        await eventually(lambda: (root / "sax/test/location.proto").is_file())
        assert admin_address(str(root)) == f"127.0.0.1:{admin.port}"


def test_flags_become_the_configuration():
    config = parse(["--sax_cell", "/sax/prod", "--port", "0", "--fs_root", "s3://b/p"])
    assert (str(config.cell), config.port, config.fs_root) == ("/sax/prod", 0, "s3://b/p")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--sax_cell", "prod"], "is not a cell"),
        (["--port", "70000"], "--port 70000"),
        (["--status_port", "-2"], "--status_port -2"),
        (["--snapshot_every", "0"], "--snapshot_every 0"),
        (["--beat_s", "0"], "--beat_s 0"),
        (["--scale_idle_s", "-1"], "--scale_idle_s -1"),
        (["--scale_up_s", "nan"], "--scale_up_s nan"),
    ],
)
def test_a_bad_flag_is_refused_in_words(flags, complaint, capsys):
    with pytest.raises(SystemExit):
        parse(flags)
    assert complaint in capsys.readouterr().err


def test_the_default_is_this_machine_only():
    assert AdminConfig().host == "127.0.0.1"
    assert os.path.isabs(AdminConfig().fs_root) is False


def test_a_wildcard_host_is_not_what_is_advertised():
    assert AdminConfig(host="0.0.0.0", advertise="me.example").advertised_host == "me.example"
    assert AdminConfig(host="0.0.0.0", advertise="fd00::7").advertised_host == "[fd00::7]"
    assert AdminConfig(host="0.0.0.0").advertised_host != "0.0.0.0"
