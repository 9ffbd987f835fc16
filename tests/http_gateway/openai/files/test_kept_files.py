from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from http_gateway.openai.files import kept_files
from http_gateway.openai.files.kept_files import PIECE_BYTES, KeptFiles, in_pieces
from http_gateway.openai.stored import new_id
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import ObjectStore, StoreUnavailable, open_store
from tests.stores.faulty_store import FaultyStore


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def data(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def whole(files: KeptFiles, owner: str, id: str) -> bytes:
    found = await files.get(owner, id)
    return b"".join([piece async for piece in files.content(owner, found)])


async def add(files: KeptFiles, *parts: bytes, owner: str = "a", **settings: object) -> str:
    file = await files.add(owner, data(*parts), filename="f", purpose="batch", **settings)  # pyright: ignore[reportArgumentType]
    return file.id


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory://")


async def test_a_file_comes_back_as_it_was_sent(store: ObjectStore):
    files = KeptFiles(store)
    sent = bytes(range(256)) * (PIECE_BYTES // 256) + b"rest"
    id = await add(files, sent[:7], b"", sent[7:])
    assert await whole(files, "a", id) == sent
    assert (await files.get("a", id)).bytes == len(sent)
    assert (await files.get("a", id)).pieces == 2


async def test_an_empty_file_is_a_file(store: ObjectStore):
    files = KeptFiles(store)
    id = await add(files)
    assert await whole(files, "a", id) == b""


async def test_content_is_cut_in_pieces_of_one_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_files, "PIECE_BYTES", 3)
    assert [p async for p in in_pieces(data(b"ab", b"cdefg", b"h"))] == [b"abc", b"def", b"gh"]


async def test_owners_see_their_own_files_only(store: ObjectStore):
    files = KeptFiles(store)
    id = await add(files, b"x")
    assert [file.id for file in await files.list("a")] == [id]
    assert await files.list("b") == []
    for refused in (files.get("b", id), files.delete("b", id)):
        with pytest.raises(NotFound):
            await refused


async def test_files_are_listed_in_the_order_of_time(store: ObjectStore):
    clock = Clock()
    files = KeptFiles(store, clock)
    ids: list[str] = []
    for _ in range(5):
        ids.append(await add(files, b"x"))
        clock.now_s += 1
    assert [file.id for file in await files.list("a")] == ids


async def test_a_deleted_file_leaves_nothing(store: ObjectStore):
    files = KeptFiles(store)
    id = await add(files, b"x")
    await files.delete("a", id)
    with pytest.raises(NotFound):
        await files.get("a", id)
    assert await store.names("") == []


async def test_a_file_expires_and_is_swept(store: ObjectStore):
    clock = Clock()
    files = KeptFiles(store, clock)
    id, other = await add(files, b"x", ttl_s=60), await add(files, b"y")
    clock.now_s += 59
    await files.sweep()
    assert await whole(files, "a", id) == b"x"
    clock.now_s += 1
    assert [file.id for file in await files.list("a")] == [other]
    await files.sweep()
    assert {name.split("/")[2] for name in await store.names("")} == {other}


async def test_an_upload_that_fails_is_no_file_and_is_swept_in_time():
    store, clock = FaultyStore(), Clock()
    files = KeptFiles(store, clock)

    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * PIECE_BYTES
        store.fails = "before"
        yield b"x"

    with pytest.raises(StoreUnavailable):
        await files.add("a", breaking(), filename="f", purpose="batch")
    store.fails = ""
    assert await files.list("a") == []
    await files.sweep()
    assert len(await store.names("")) == 1  # it may still be under way
    clock.now_s += 86400
    await files.sweep()
    assert await store.names("") == []


async def test_the_same_file_may_be_written_again(store: ObjectStore):
    clock = Clock()
    files = KeptFiles(store, clock)
    id = new_id("file-", 5)
    first = await files.add("a", data(b"xy"), filename="f", purpose="batch", id=id)
    clock.now_s += 1
    assert await files.add("a", data(b"xy"), filename="f", purpose="batch", id=id) == first


async def test_without_a_store_the_flag_is_named():
    with pytest.raises(InvalidRequest, match="--files"):
        await KeptFiles(None).list("a")
    await KeptFiles(None).sweep()
