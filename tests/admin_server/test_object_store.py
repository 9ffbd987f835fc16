"""The store: create-if-absent on every backend at hand, and durable on local disk."""

import asyncio
import os
import stat

import pytest

from admin_server.object_store import ObjectExists, ObjectMissing, StoreUnavailable, open_store
from sax.errors import InvalidRequest


@pytest.fixture(params=["memory", "folder", "file url"])
def store(request, tmp_path):
    where = {"memory": "memory://", "folder": str(tmp_path / "a b"), "file url": tmp_path.as_uri()}
    return open_store(where[request.param])


async def test_an_object_is_created_once_and_then_keeps_its_bytes(store):
    await store.create("a/b", b"one")
    with pytest.raises(ObjectExists):
        await store.create("a/b", b"two")
    assert await store.get("a/b") == b"one"


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


async def test_what_a_dead_writer_left_half_written_is_cleared_away(tmp_path):
    store = open_store(str(tmp_path))
    await store.create("a", b"")
    (tmp_path / "staging" / "torn").write_bytes(b"ha")
    open_store(str(tmp_path))
    assert list((tmp_path / "staging").iterdir()) == []


async def test_a_store_that_fails_is_unavailable_and_says_where(tmp_path):
    store = open_store(str(tmp_path))
    (tmp_path / "a").write_text("a file where a folder must be")
    with pytest.raises(StoreUnavailable, match="failed at a/b"):
        await store.create("a/b", b"")


@pytest.mark.parametrize("location", ["ftp://host/x", "nonsense://x", "az://x"])
def test_a_location_that_is_no_store_is_refused(location):
    with pytest.raises(InvalidRequest, match="cannot write to"):
        open_store(location)
