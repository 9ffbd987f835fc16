"""A model server that obeys a term which is not in the log: the leader leads on, and says so."""

import pytest

from admin_server.ledger.ledger import Ledger
from sax.types import ModelSpec
from tests.admin_server.conftest import eventually

BOGUS = 10**11


def spec(name: str = "m", **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=f"/sax/test/{name}", **settings)


@pytest.mark.virtual_time
async def test_a_term_that_the_log_does_not_bear_out_is_disputed_and_reported(admin, start_modelet):
    modelet = await start_modelet()
    modelet.obeys = BOGUS
    await eventually(lambda: modelet.disputes)
    assert modelet.disputes == [(admin.role.term, BOGUS)]
    assert not admin.cell.ledger.deposed.is_set()
    (warning,) = admin.role.warnings()
    assert f"{modelet.address} of a leader of term {BOGUS}" in warning
    assert [e.server for e in admin.cell.recent_events.newest(9) if e.kind == "disputed"] == [
        modelet.address
    ]
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find("/sax/test/m").ready_replicas == 1)


@pytest.mark.virtual_time
async def test_a_leader_that_the_log_has_replaced_steps_down_when_a_server_says_so(
    admin, start_modelet, wires
):
    other = await Ledger.open(
        admin.cell.ledger._log._store, admin.cell.ledger._log._cell, snapshot_every=9
    )
    term = await other.take_lead("other", "10.0.0.1:1", 0)
    modelet = await start_modelet()
    modelet.obeys = term
    await eventually(admin.cell.ledger.deposed.is_set)
    assert modelet.disputes == []
    assert admin.role.warnings() == []


@pytest.mark.virtual_time
async def test_a_leader_that_cannot_read_the_log_believes_the_server(admin, start_modelet, wires):
    wires.store.cut()  # nothing gets through to the store
    modelet = await start_modelet()
    modelet.obeys = BOGUS
    await eventually(admin.cell.ledger.deposed.is_set)
    assert modelet.disputes == []
