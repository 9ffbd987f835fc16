"""Merging changes that are made at the same time, and what a version's id looks like."""

from __future__ import annotations

import pytest

from sax.client import history
from sax.client.history import check_version, merging
from sax.errors import AdminUnavailable, InvalidRequest, StaleRevision
from tests.each_case import each_case


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_PAUSE_S", 0.0)


class Rival:
    """Is faster than the writer a number of times."""

    def __init__(self, wins: int, error: Exception | None = None) -> None:
        self.wins = wins
        self.error = error or StaleRevision("someone else was faster", param="revision")
        self.tries = 0

    async def merge_and_write(self) -> None:
        self.tries += 1
        if self.tries <= self.wins:
            raise self.error


async def test_a_change_is_made_again_from_what_someone_else_made_of_it() -> None:
    rival = Rival(wins=3)
    await merging(rival.merge_and_write)
    assert rival.tries == 4


async def test_whoever_is_always_slower_is_told_so_in_the_end() -> None:
    rival = Rival(wins=1000)
    with pytest.raises(StaleRevision):
        await merging(rival.merge_and_write)
    assert rival.tries == 8


async def test_another_error_is_not_tried_again() -> None:
    rival = Rival(wins=1, error=AdminUnavailable("gone"))
    with pytest.raises(AdminUnavailable):
        await merging(rival.merge_and_write)
    assert rival.tries == 1


@pytest.mark.parametrize("text", ["", "0f" * 16])
def test_a_version_is_nothing_or_32_hex_digits(text: str) -> None:
    assert check_version(text) == text


@each_case("text", ["0F" * 16, "0f" * 15, "latest", "0f" * 16 + "\n"])
def test_anything_else_is_no_version(text: str) -> None:
    with pytest.raises(InvalidRequest, match="sax versions") as refusal:
        check_version(text)
    assert refusal.value.param == "version"
