"""What keys store of responses has a quota; beyond it answers go on without being stored."""

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.openai.kept_space import KeptSpace
from sax.errors import InvalidRequest
from sax.storage.object_store import open_store
from tests.http_gateway.fake_cell import FakeCell, published

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
