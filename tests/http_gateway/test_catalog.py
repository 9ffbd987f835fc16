import asyncio

import pytest

from http_gateway.catalog import Catalog
from sax.errors import AdminUnavailable, InvalidName, InvalidRequest, ModelNotFound
from tests.http_gateway.fake_cell import FakeCell, published


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(cell: FakeCell, clock: Clock) -> Catalog:
    return Catalog(cell, clock)


async def test_a_model_is_found_by_its_full_name_and_by_its_last_part(catalog: Catalog):
    assert await catalog.resolve("/sax/test/smollm2") == "/sax/test/smollm2"
    assert await catalog.resolve("smollm2") == "/sax/test/smollm2"


async def test_an_ambiguous_last_part_lists_the_candidates(cell: FakeCell, catalog: Catalog):
    cell.models["/sax/other/llama"] = published("/sax/other/llama")
    with pytest.raises(InvalidRequest, match="/sax/test/llama, /sax/other/llama") as caught:
        await catalog.resolve("llama")
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["smolm2", "/sax/test/smolm2"])
async def test_an_unknown_name_is_answered_with_the_nearest(catalog: Catalog, name: str):
    with pytest.raises(ModelNotFound, match="nearest names are /sax/test/smollm2"):
        await catalog.resolve(name)


async def test_an_unknown_name_asks_the_admin_once(cell: FakeCell, catalog: Catalog):
    await catalog.refresh()
    with pytest.raises(ModelNotFound):
        await catalog.resolve("zzz")
    assert cell.lists == 2


async def test_an_empty_cell_says_so():
    with pytest.raises(ModelNotFound, match="nothing is published"):
        await Catalog(FakeCell()).resolve("smollm2")


async def test_a_malformed_full_name_is_told_what_a_good_one_is(catalog: Catalog):
    with pytest.raises(InvalidName, match="/sax/<cell>/<model>"):
        await catalog.resolve("/sax/test")


async def test_a_known_name_does_not_wait_for_the_admin(
    cell: FakeCell, catalog: Catalog, clock: Clock
):
    await catalog.resolve("smollm2")
    clock.now = 100.0
    cell.admin_failure = AdminUnavailable("gone")
    assert await catalog.resolve("smollm2") == "/sax/test/smollm2"
    assert await catalog.require("/sax/test/llama") == "/sax/test/llama"
    await asyncio.sleep(0)
    assert cell.lists == 2  # the refresh behind the answer


async def test_a_list_younger_than_a_second_is_not_asked_for_again(
    cell: FakeCell, catalog: Catalog, clock: Clock
):
    await catalog.resolve("smollm2")
    clock.now = 1.0
    await catalog.resolve("smollm2")
    await asyncio.sleep(0)
    assert cell.lists == 1


async def test_a_stale_list_is_renewed_behind_the_answer(
    cell: FakeCell, catalog: Catalog, clock: Clock
):
    await catalog.resolve("smollm2")
    await cell.unpublish("/sax/test/llama")
    clock.now = 1.1
    await catalog.resolve("smollm2")
    await catalog.refresh()  # shares the call that runs
    assert cell.lists == 2
    assert [model.spec.model_id for model in catalog.models] == ["/sax/test/smollm2"]


async def test_without_an_admin_a_full_name_is_left_to_the_locator_and_a_last_part_fails(
    cell: FakeCell, catalog: Catalog
):
    cell.admin_failure = AdminUnavailable("the admin is away")
    assert await catalog.require("/sax/test/smollm2") == "/sax/test/smollm2"
    with pytest.raises(AdminUnavailable):
        await catalog.resolve("smollm2")


async def test_callers_at_the_same_moment_share_one_call(cell: FakeCell, catalog: Catalog):
    await asyncio.gather(*(catalog.resolve("smollm2") for _ in range(5)))
    assert cell.lists == 1
