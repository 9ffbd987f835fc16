from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.openai.stored import (
    PAUSE_S,
    KeptSpace,
    PageQuery,
    PatientStore,
    folder_of_key,
    ids_of_page,
    made_at,
    new_id,
    owner_folder,
    page_of,
)
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import ObjectExists, StoreUnavailable, open_store
from tests.http_gateway.fake_cell import FakeCell, published
from tests.stores.faulty_store import FaultyStore
from tests.virtual_loop import now, run


@given(count=st.integers(0, 30), limit=st.integers(1, 9), order=st.sampled_from(["asc", "desc"]))
def test_pages_in_turn_are_the_whole_list(count: int, limit: int, order: str):
    ids = [f"id-{n}" for n in range(count)]
    seen: list[str] = []
    after, more = None, True
    while more:
        page, more = ids_of_page(ids, PageQuery(after=after, limit=limit, order=order))  # pyright: ignore[reportArgumentType]
        assert len(page) <= limit
        seen += page
        after = page[-1] if page else None
    assert seen == (ids if order == "asc" else ids[::-1])


def test_a_page_after_an_unknown_id_is_refused():
    with pytest.raises(NotFound, match="after is 'x': give the id of an entry"):
        ids_of_page(["a"], PageQuery(after="x"))


def test_a_page_names_its_first_and_last_id():
    entries = [{"id": name} for name in "abc"]
    page = page_of(entries, PageQuery(limit=2))
    assert page == {
        "object": "list",
        "data": [{"id": "c"}, {"id": "b"}],
        "first_id": "c",
        "last_id": "b",
        "has_more": True,
    }
    assert page_of([], PageQuery())["first_id"] is None


@given(st.integers(0, 2**40 - 1))
def test_an_id_tells_when_it_was_made(now: int):
    assert made_at(new_id("file-", now), "file-") == now
    assert made_at(new_id("file-", now), "batch_") is None


@given(st.integers(0, 2**39), st.integers(1, 2**39 - 1))
def test_ids_sort_by_time(now: int, later: int):
    assert new_id("resp_", now) < new_id("resp_", now + later)


@given(st.text(max_size=60))
def test_other_texts_are_no_ids(text: str):
    assert made_at(text, "file-") is None


def test_each_key_has_a_folder_of_its_own_whatever_its_name():
    names = ["alice", "bob", "spiffe://cell/alice", "a/../b"]
    folders = {folder_of_key(name) for name in names}
    assert len(folders) == len(names)
    assert all(folder.isalnum() for folder in folders)


def test_without_keys_all_share_a_folder():
    assert owner_folder() == folder_of_key("") == "everyone"


class FailsFirst(FaultyStore):
    """Every call fails so many times before it is answered."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = self.left = times

    async def get(self, name: str) -> bytes:
        self._fail()
        return name.encode()

    async def names(self, prefix: str) -> list[str]:
        self._fail()
        return [prefix]

    def _fail(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("busy")
        self.left = self.times


def test_reads_are_tried_again_with_longer_pauses():
    async def story() -> float:
        patient, began_s = PatientStore(FailsFirst(3)), now()
        assert await patient.get("a") == b"a"
        assert await patient.names("b") == ["b"]
        return now() - began_s

    assert run(story()) == 2 * PAUSE_S * (1 + 2 + 4)


def test_a_store_that_stays_away_is_unavailable_in_the_end():
    async def story() -> None:
        await PatientStore(FailsFirst(100)).get("a")

    with pytest.raises(StoreUnavailable):
        run(story())


async def test_writes_pass_and_a_creation_is_tried_once():
    store = FaultyStore()
    patient = PatientStore(store)
    await patient.create("a", b"x")
    await patient.replace("b", b"y")
    with pytest.raises(ObjectExists):
        await patient.create("a", b"z")
    await patient.delete(["a"])
    assert await patient.names("") == ["b"]
    store.fails = "after"
    with pytest.raises(StoreUnavailable):
        await patient.create("c", b"x")


PATH = "/v1/responses"
ASKED = {"model": "smollm2", "input": "abc"}


async def test_what_is_there_is_measured_and_what_is_written_counts_at_once():
    store = open_store("memory://")
    await store.replace("responses/k/a", b"12345")
    await store.replace("others/k/a", b"12345")
    space = KeptSpace(store, ("responses", "response_ends"), 10)
    await space.measure()
    assert space.has_room("k")
    space.add("k", 5)
    assert not space.has_room("k")
    assert space.has_room("other")
    with pytest.raises(InvalidRequest, match=r"hold 10 bytes, of the 10 of --max_key_bytes"):
        space.check("k", "store")
    assert KeptSpace(store, ("responses",)).has_room("k")


async def test_beyond_the_quota_answers_are_not_stored_unless_that_is_asked_for():
    config = GatewayConfig(max_key_bytes=100)
    app = create_app(
        FakeCell(published("/sax/test/smollm2")), config, store=open_store("memory://")
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        first = (await http.post(PATH, json=ASKED)).json()
        second = (await http.post(PATH, json=ASKED)).json()
        assert (first["store"], second["store"]) == (True, False)
        for field in ("store", "background"):
            refused = await http.post(PATH, json={**ASKED, field: True})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
            assert "callers without a key" in refused.json()["error"]["message"]
        assert (await http.delete(f"{PATH}/{first['id']}")).status_code == 200
        await app.state.background._space.measure()
        assert (await http.post(PATH, json=ASKED)).json()["store"]
