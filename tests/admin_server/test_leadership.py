"""What servers a leader keeps for its successor, and foreign objects among those of a cell."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from admin_server.config import AdminConfig
from admin_server.leadership import (
    LeaderBeat,
    LeadTiming,
    Lease,
    Life,
    decode_membership,
    encode_membership,
    find_foreign,
    foreign_names,
    is_gone,
    own_mark,
)
from admin_server.process import running
from sax.storage.object_store import open_store
from sax.types import ModelSpec, ServerInfo
from tests.admin_server.conftest import FAST, eventually

LOOKING = LeadTiming(beat_s=0.2, foreign_s=0.2)


def spec(name: str) -> ModelSpec:
    return ModelSpec(model_id=f"/sax/test/{name}", model_path="llama", checkpoint="/c", replicas=0)


def folder(config: AdminConfig) -> Path:
    return Path(config.fs_root) / "sax/test"


async def test_nothing_that_an_admin_server_writes_is_foreign(config, tmp_path):
    config = replace(config, sax_root=config.fs_root, snapshot_every=2)
    async with running(config, FAST) as admin:
        for name in "abcde":
            await admin.cell.publish(spec(name))
        await eventually(lambda: (folder(config) / "archive").exists())
        store = open_store(config.fs_root)
        kinds = {name.split("/")[2] for name in await store.names("sax/test")}
        assert {"records", "snapshots", "archive", "beats", "roster", "mark"} <= kinds
        assert "location.proto" in kinds
        assert await find_foreign(store, config.cell) == ()


def test_names_that_only_look_like_ours_are_foreign():
    names = ["sax/t/records/1", "sax/t/records/000000000001.bak", "sax/t/notes", "sax/t/beats/x"]
    assert foreign_names("sax/t", names) == tuple(names)
    assert foreign_names("sax/t", ["sax/t/records/000000000001"]) == ()


@pytest.mark.parametrize("status_port", [0])
async def test_a_foreign_file_is_named_in_health_and_harms_nothing_while_the_leader_runs(config):
    async with running(config, FAST, LOOKING) as admin:
        await admin.cell.publish(spec("a"))
        for kind in ("records", "snapshots", "beats"):
            (folder(config) / kind).mkdir(exist_ok=True)
            (folder(config) / kind / "notes.txt").write_text("hello")
        await admin.cell.publish(spec("b"))
        await eventually(lambda: len(admin.role.health.foreign) == 3)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.status_port}") as http:
            ready, status = await http.get("/readyz"), await http.get("/status.json")
            assert "sax_admin_store_foreign_objects 3.0" in (await http.get("/metrics")).text
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    for kind in ("records", "snapshots", "beats"):
        assert f"sax/test/{kind}/notes.txt" in ready.json()["warnings"][0]
        assert f"sax/test/{kind}/notes.txt" in status.json()["warnings"][0]


needs_proc = pytest.mark.skipif(not own_mark(), reason="this system has no /proc")


@needs_proc
def test_this_very_process_is_here():
    assert not is_gone(own_mark())


@needs_proc
def test_a_process_that_ended_is_gone():
    code = "from admin_server.leadership import own_mark; print(own_mark())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(told.stdout.strip())


@needs_proc
def test_a_number_that_was_given_to_another_process_is_not_the_one_of_the_mark():
    machine, pid, started = own_mark().split()
    assert is_gone(f"{machine} {pid} {int(started) + 1}")


@pytest.mark.parametrize("mark", ["", "elsewhere 1 1", "nonsense"])
def test_nobody_here_can_tell_of_a_process_elsewhere(mark):
    assert not is_gone(mark)


BEAT = LeaderBeat("id", "10.0.0.1:1", 7)


def life(number: int = 1, term: int = 5, **changes) -> Life:
    return Life(term, (term, number), structs.replace(BEAT, **changes))


def watched(*looks: tuple[float, Life]) -> Lease:
    lease = Lease(3.0)
    for now, seen in looks:
        lease = lease.look(seen, now)
    return lease


def test_nobody_is_judged_before_the_first_look():
    assert not Lease(3.0).vacant(100.0)


def test_a_cell_that_nobody_ever_led_is_vacant():
    assert watched((100.0, Life(0))).vacant(100.0)


def test_a_leader_that_beats_is_followed_and_a_silent_one_for_its_time():
    steady = [(100.0 + n, life(n)) for n in range(10)]
    assert not watched(*steady).vacant(109.9)
    silent = [(100.0 + n / 2, life()) for n in range(8)]
    assert not watched(*silent[:6]).vacant(102.9)
    assert watched(*silent).vacant(103.0)


def test_a_leader_that_resigned_is_not_waited_for():
    assert watched((100.0, life(resigned=True))).vacant(100.0)


def test_the_last_word_of_an_older_leader_does_not_count():
    older = Life(9, (5, 3), structs.replace(BEAT, resigned=True))
    assert not watched((100.0, older)).vacant(100.0)


def test_a_leader_in_the_log_that_has_not_beaten_yet_gets_its_time():
    assert not watched((100.0, Life(5))).vacant(100.0)
    assert watched((100.0, Life(5)), (101.0, Life(5)), (102.0, Life(5))).vacant(103.0)


def test_who_could_not_look_for_a_while_begins_to_watch_anew():
    """The store may have stalled for the leader as well."""
    lease = watched((100.0, life()), (110.0, life()))
    assert not lease.vacant(110.0)
    assert not lease.vacant(112.9)


def test_a_new_term_is_a_sign_of_life():
    lease = watched(
        (100.0, life()), (101.0, life()), (102.0, life()), (102.9, Life(6, (5, 1), BEAT))
    )
    assert not lease.vacant(103.5)


INFOS = st.builds(
    ServerInfo,
    address=st.text(min_size=1),
    model_paths=st.sampled_from([(), ("llama",), ("llama", "gemma")]),
    tags=st.lists(st.text()).map(tuple),
    incarnation=st.text(),
    memory_total=st.integers(0, 1 << 60),
    devices=st.integers(0, 1 << 30),
)


@given(st.lists(INFOS, max_size=8))
def test_a_roster_is_read_as_it_was_written(infos):
    assert decode_membership(encode_membership(infos, 7)) == (infos, 7)


def test_a_roster_of_a_version_that_named_no_record_is_read():
    paths = [ServerInfo(address="10.0.0.1:1", model_paths=("llama",))]
    stored = json.loads(encode_membership(paths, 7))
    del stored["sequence"]
    assert decode_membership(json.dumps(stored).encode()) == (paths, 0)


def test_paths_that_servers_share_are_written_once():
    paths = tuple(f"saxml.server.pax.lm.params.{n}" for n in range(66))
    infos = [ServerInfo(address=f"10.0.0.1:{n}", model_paths=paths) for n in range(1, 1001)]
    assert encode_membership(infos, 7).count(paths[0].encode()) == 1
