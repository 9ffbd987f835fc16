"""One listing for many who ask at a time."""

from admin_server.api.server import CellListing
from sax.types import ModelSpec


def spec(name: str) -> ModelSpec:
    return ModelSpec(
        model_id=f"/sax/test/{name}", model_path="llama", checkpoint="/one", replicas=1
    )


async def test_who_asks_within_a_moment_gets_the_same_answer(admin):
    now = 10.0
    listing = CellListing(lambda: now)
    first = listing.answer(admin.cell, "")
    assert listing.answer(admin.cell, "/sax/test") is first
    now += 1
    assert listing.answer(admin.cell, "") is not first


async def test_an_acknowledged_change_is_in_the_next_answer(admin):
    listing = CellListing(lambda: 10.0)
    assert not listing.answer(admin.cell, "").published_models
    await admin.cell.publish(spec("m"))
    (model,) = listing.answer(admin.cell, "").published_models
    assert model.model.model_id == "/sax/test/m"
