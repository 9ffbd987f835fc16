"""The table of statuses: every path ends where nothing is held."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.serving.servable import StatusEvent, transition
from sax.types import ServableStatus

LOADING, LOADED = ServableStatus.LOADING, ServableStatus.LOADED
FAILED, UNLOADING, NONE = ServableStatus.FAILED, ServableStatus.UNLOADING, ServableStatus.NONE


def possible(status: ServableStatus) -> list[StatusEvent]:
    """The events that can happen in this status."""
    found = []
    for event in StatusEvent:
        try:
            transition(status, event)
        except AssertionError:
            continue
        found.append(event)
    return found


def walk(data: st.DataObject, steps: int) -> ServableStatus:
    """A random life, from NONE."""
    status = NONE
    for _ in range(steps):
        status = transition(status, data.draw(st.sampled_from(possible(status))))
    return status


@given(st.data(), st.integers(0, 20))
def test_whatever_happened_an_unload_ends_in_none(data: st.DataObject, steps: int) -> None:
    status = transition(walk(data, steps), StatusEvent.UNLOAD)
    if status is UNLOADING:
        status = transition(status, StatusEvent.UNLOADED)
    assert status is NONE


@given(st.data(), st.integers(0, 20))
def test_only_a_load_that_was_not_called_off_becomes_loaded(
    data: st.DataObject, steps: int
) -> None:
    status = walk(data, steps)
    for event in possible(status):
        if transition(status, event) is LOADED:
            assert (status, event) == (LOADING, StatusEvent.LOADED)


def test_a_failed_model_can_be_loaded_again() -> None:
    assert transition(FAILED, StatusEvent.LOAD) is LOADING


def test_a_result_that_comes_after_an_unload_is_dropped() -> None:
    assert transition(UNLOADING, StatusEvent.LOADED) is UNLOADING
    assert transition(UNLOADING, StatusEvent.FAILED) is UNLOADING


def test_loading_what_is_loaded_is_no_event() -> None:
    with pytest.raises(AssertionError, match="cannot happen to a model that is loaded"):
        transition(LOADED, StatusEvent.LOAD)
