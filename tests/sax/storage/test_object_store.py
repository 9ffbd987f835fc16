"""The store: create-if-absent on every backend at hand, and durable on local disk."""

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from admin_server.process import write_location
from sax.errors import InvalidRequest
from sax.names import CellId
from sax.storage.object_store import (
    ObjectExists,
    ObjectMissing,
    RemoteStore,
    StoreThreads,
    StoreUnavailable,
    TooManyCalls,
    open_store,
)
from tests.stores.fixtures import AZURITE, GCS, KINDS, MOTO
from tests.stores.place import BUCKET


@pytest.fixture
def store(place):
    return open_store(place.url, timeout_s=60)


async def test_a_file_url_is_a_folder(tmp_path):
    await open_store(f"{tmp_path.as_uri()}/a%20b").create("c", b"one")
    assert (tmp_path / "a b/c").read_bytes() == b"one"


async def test_an_object_is_created_once_and_then_keeps_its_bytes(store):
    await store.create("a/b", b"one")
    with pytest.raises(ObjectExists):
        await store.create("a/b", b"two")
    assert await store.get("a/b") == b"one"


# Not moto: it looks and then writes, so that two may win.
@pytest.mark.parametrize("place", [kind for kind in KINDS if kind is not MOTO], indirect=True)
async def test_one_of_many_creators_wins(store):
    results = await asyncio.gather(
        *(store.create("a/b", bytes([n])) for n in range(8)), return_exceptions=True
    )
    winner = results.index(None)
    assert [type(result) for result in results].count(ObjectExists) == 7
    assert await store.get("a/b") == bytes([winner])


async def test_names_below_a_prefix_come_in_order_and_no_others(store):
    for name in ("p/2", "p/1", "pp/3", "q/4"):
        await store.create(name, b"")
    assert await store.names("p") == ["p/1", "p/2"]
    assert await store.names("nothing") == []


async def test_a_name_is_no_prefix_of_another_by_its_letters(store):
    await store.create("p/1", b"")
    await store.create("p/11", b"")
    assert await store.names("p/1") == []


# Azurite's pages hold 5,000 names.
@pytest.mark.extended
@pytest.mark.parametrize("place", [kind for kind in KINDS if kind is not AZURITE], indirect=True)
async def test_more_names_than_fit_in_one_page_are_all_listed(store):
    names = [f"p/{number:012d}" for number in range(1_050)]
    room = asyncio.Semaphore(16)

    async def create(name: str) -> None:
        async with room:
            await store.create(name, b"x")

    await asyncio.gather(*map(create, names))
    assert await store.names("p") == names


async def test_an_object_may_be_replaced_where_that_is_meant(store):
    await store.replace("a/b", b"one")
    await store.replace("a/b", b"two")
    assert await store.get("a/b") == b"two"
    with pytest.raises(ObjectExists):
        await store.create("a/b", b"three")


async def test_deleting_what_is_not_there_is_no_error(store):
    await store.create("a", b"")
    await store.delete(["a", "b"])
    with pytest.raises(ObjectMissing):
        await store.get("a")


async def test_a_write_to_a_folder_is_synced_before_and_after_it_gets_its_name(
    tmp_path, monkeypatch
):
    """The order is the point: bytes, then the name, then the folder that holds the name."""
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def told_fsync(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        events.append("sync folder" if folder else "sync bytes")
        fsync(handle)

    def told_link(source, target, **options) -> None:
        events.append("link")
        link(source, target, **options)

    store = open_store(str(tmp_path))
    await store.create("sax/test/records/1", b"x")
    monkeypatch.setattr(os, "fsync", told_fsync)
    monkeypatch.setattr(os, "link", told_link)
    await store.create("sax/test/records/2", b"x")
    assert events[:3] == ["sync bytes", "link", "sync folder"]


async def test_what_a_dead_writer_left_half_written_is_cleared_away_and_no_living_ones(tmp_path):
    store = open_store(str(tmp_path))
    await store.create("a", b"")
    torn, under_way = tmp_path / "staging" / "torn", tmp_path / "staging" / "under way"
    for each in (torn, under_way):
        each.write_bytes(b"ha")
    os.utime(torn, (time.time() - 3600,) * 2)
    open_store(str(tmp_path))
    assert list((tmp_path / "staging").iterdir()) == [under_way]


async def test_a_store_that_fails_is_unavailable_and_says_where(tmp_path):
    store = open_store(str(tmp_path))
    (tmp_path / "a").write_text("a file where a folder must be")
    with pytest.raises(StoreUnavailable, match="failed at a/b"):
        await store.create("a/b", b"")


@pytest.mark.parametrize("location", ["ftp://host/x", "nonsense://x", "az://x"])
def test_a_location_that_is_no_store_is_refused(location):
    with pytest.raises(InvalidRequest, match="cannot write to"):
        open_store(location)


@pytest.mark.parametrize("place", [MOTO, GCS, AZURITE], indirect=True)
async def test_a_bucket_that_is_not_there_is_a_store_that_fails_and_not_an_empty_one(place):
    store = open_store(place.url.replace(BUCKET, "no-such-bucket"))
    with pytest.raises(StoreUnavailable, match="bucket or folder does not exist"):
        await store.create("a", b"")
    with pytest.raises(StoreUnavailable):
        await store.names("a")


async def test_a_call_that_hangs_ends_in_time_and_only_so_many_may_hang():
    """A folder on a network file system that is gone hangs without end, as this backend does."""
    hung = threading.Event()

    class HangingStore(RemoteStore):
        def _read(self, name: str) -> bytes:
            hung.wait()
            return b""

    store = HangingStore(MemoryStore(), "gone", timeout_s=0.1)
    results = await asyncio.gather(*(store.get("a") for _ in range(100)), return_exceptions=True)
    assert {type(result) for result in results} == {StoreUnavailable}
    texts = [str(result) for result in results]
    assert sum("no answer within 0.1 s" in text for text in texts) == 64
    assert sum("64 calls to it have not returned" in text for text in texts) == 36
    # Whoever else uses asyncio's own threads is not held up.
    assert await asyncio.to_thread(lambda: 1) == 1
    hung.set()
    assert await answer(store, "a") == b""


async def answer(store: RemoteStore, name: str) -> bytes:
    """What is read once the store is well again."""
    while True:
        try:
            return await store.get(name)
        except StoreUnavailable:
            await asyncio.sleep(0.02)


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


def open_to_all(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


async def test_folders_are_0700_and_files_0600_whatever_the_umask(tmp_path):
    root, umask = tmp_path / "state", os.umask(0)
    try:
        store = open_store(str(root))
        await store.create("sax/test/records/1", b"x")
        await store.replace("sax/test/other", b"x")
    finally:
        os.umask(umask)
    assert set(modes(root).values()) == {0o700, 0o600}


async def test_a_folder_of_an_older_version_is_closed_at_the_start(tmp_path, caplog):
    root = tmp_path / "state"
    await open_store(str(root)).create("sax/test/records/1", b"x")
    open_to_all(root)
    store = open_store(str(root))
    assert set(modes(root).values()) == {0o700, 0o600}
    assert "6 files and folders of" in caplog.text
    assert await store.get("sax/test/records/1") == b"x"
    caplog.clear()
    open_store(str(root))
    assert caplog.text == ""


async def test_a_root_that_holds_other_things_stays_open_and_is_named(tmp_path, caplog):
    await open_store(str(tmp_path)).create("sax/test/records/1", b"x")
    (tmp_path / "letters").write_text("dear")
    open_to_all(tmp_path)
    open_store(str(tmp_path))
    found = modes(tmp_path)
    assert (found["."], found["letters"]) == (0o777, 0o666)
    assert (found["sax"], found["sax/test/records/1"]) == (0o700, 0o600)
    assert f"{tmp_path} and 0 more are open to other users" in caplog.text


async def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "elsewhere"
    secret.write_text("x")
    secret.chmod(0o644)
    root = tmp_path / "state"
    await open_store(str(root)).create("sax/test/records/1", b"x")
    (root / "sax/link").symlink_to(secret)
    open_store(str(root))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o644


async def test_clients_of_other_users_can_read_the_location(tmp_path):
    umask = os.umask(0o022)
    try:
        await write_location(str(tmp_path / "root"), CellId("test"), "10.0.0.1:1")
    finally:
        os.umask(umask)
    found = modes(tmp_path / "root")
    assert (found["."], found["sax/test"], found["sax/test/location.proto"]) == (
        0o755,
        0o755,
        0o644,
    )


async def test_a_call_gives_back_what_it_returns_or_raises():
    threads = StoreThreads(1)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)
    assert await threads.run(int, "11", base=2) == 3


async def test_a_call_that_its_caller_gave_up_counts_until_it_ends():
    threads, hung = StoreThreads(1), threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(threads.run(hung.wait), 0.05)
    with pytest.raises(TooManyCalls, match="1 calls to it have not returned"):
        await threads.run(int)
    hung.set()
    while True:
        try:
            assert await threads.run(int) == 0
            break
        except TooManyCalls:
            await asyncio.sleep(0.01)


@pytest.mark.extended
def test_a_call_that_hangs_for_ever_does_not_keep_the_process_alive():
    code = (
        "import asyncio, threading\n"
        "from sax.storage.object_store import StoreThreads\n"
        "async def main():\n"
        "    await asyncio.wait_for(StoreThreads(1).run(threading.Event().wait), 0.05)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except TimeoutError:\n"
        "    print('gave up')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("gave up\n", "")
