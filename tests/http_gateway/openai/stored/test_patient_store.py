from __future__ import annotations

import pytest

from http_gateway.openai.stored.patient_store import PAUSE_S, PatientStore
from sax.storage.object_store import ObjectExists, StoreUnavailable
from tests.stores.faulty_store import FaultyStore
from tests.virtual_loop import now, run


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
