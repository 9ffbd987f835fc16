"""Hosts divide in order, and their neighbours make rings."""

from __future__ import annotations

import pytest

from model_server.loading.stages.place import place_of
from sax.errors import InvalidRequest


def test_hosts_are_divided_in_order() -> None:
    places = [place_of(6, ordinal, 3) for ordinal in range(6)]
    assert [place.stage for place in places] == [0, 0, 1, 1, 2, 2]
    assert [list(place.members) for place in places[::2]] == [[0, 1], [2, 3], [4, 5]]


def test_a_host_sends_to_the_same_place_of_the_next_stage_and_the_last_to_the_first() -> None:
    assert [place_of(6, ordinal, 3).next for ordinal in range(6)] == [2, 3, 4, 5, 0, 1]
    assert [place_of(2, ordinal, 2).next for ordinal in range(2)] == [1, 0]


@pytest.mark.parametrize(("hosts", "stages", "said"), [(4, 3, "4 hosts"), (1, 2, "1 host,")])
def test_hosts_that_do_not_divide_are_refused_by_name(hosts: int, stages: int, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"NUM_STAGES is {stages}, .* has {said}") as caught:
        place_of(hosts, 0, stages)
    assert caught.value.param == "overrides.NUM_STAGES"
