"""A gateway beside one model server: the process with its flag, in a cell that counts."""

from contextlib import AsyncExitStack

import httpx
import pytest

from sax.types import ModelSpec, PublishedModel
from tests.http_gateway.test_main import started
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

MODEL = "/sax/test/counter"
ASKED = 8


async def ask_through_a_gateway(flags: list[str], admin: FakeAdmin) -> None:
    """Ask one after the other, so that every replica is as free as any."""
    with started("-m", "http_gateway", "--port=0", f"--admin={admin.address}", *flags) as (_, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            for _ in range(ASKED):
                body = {"model": MODEL, "prompt": "go", "max_tokens": 2}
                reply = await http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text


@pytest.mark.extended
async def test_a_gateway_asks_the_replica_it_was_told_to_prefer_while_there_are_others() -> None:
    async with AsyncExitStack() as stack:
        admin, near, far = FakeAdmin(), FakeReplica(), FakeReplica()
        admin.models[MODEL] = PublishedModel(
            ModelSpec(model_id=MODEL, model_path="counter", checkpoint="None", replicas=2)
        )
        for each in (admin, near, far):
            await each.start()
            stack.push_async_callback(each.stop)
        admin.ready(MODEL, near.address, far.address)
        await ask_through_a_gateway([f"--prefer={near.address}"], admin)
        assert (len(near.asked), len(far.asked)) == (ASKED, 0)
