"""Objects of which only the newest counts."""

from admin_server.storage.envelope import Series
from sax.names import CellId
from sax.storage.object_store import open_store

CELL = CellId("test")


async def test_the_newest_is_read_and_the_older_ones_are_gone():
    store = open_store("memory://")
    series = Series(store, CELL, "beats")
    assert await series.newest() is None
    for number in range(3):
        assert await series.write(4, b"%d" % number) == 4
    assert await series.newest() == ((4, 3), b"2")
    assert len(await store.names("sax/test/beats")) == 1


async def test_a_later_term_is_newer_whatever_its_number_and_is_told_to_the_older():
    store = open_store("memory://")
    older, newer = Series(store, CELL, "beats"), Series(store, CELL, "beats")
    for _ in range(3):
        await older.write(4, b"1")
    await newer.write(9, b"2")
    assert await older.write(4, b"3") == 9
    assert await Series(store, CELL, "beats").newest() == ((9, 1), b"2")


async def test_one_that_is_torn_or_foreign_is_reported_and_passed_over(caplog):
    store = open_store("memory://")
    series = Series(store, CELL, "beats")
    await series.write(4, b"1")
    await store.create("sax/test/beats/000000000005/000000000001", b"torn")
    await store.create("sax/test/beats/notes.txt", b"hello")
    assert await series.newest() == ((4, 1), b"1")
    assert "000000000005/000000000001 is torn" in caplog.text
    assert "notes.txt is foreign" in caplog.text


async def test_a_bucket_that_is_emptied_under_a_leader_does_not_end_it():
    series = Series(Emptied(), CELL, "beats")
    assert await series.write(4, b"1") == 4


class Emptied:
    """A store in which nothing stays."""

    async def create(self, name: str, data: bytes) -> None: ...

    async def names(self, prefix: str) -> list[str]:
        return []

    async def delete(self, names: list[str]) -> None: ...
