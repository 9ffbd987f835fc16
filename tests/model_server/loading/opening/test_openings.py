"""What never answers ends the load by name, not the server; its thread is counted."""

import threading

import pytest

from model_server.loading.opening.openings import Openings
from sax.errors import CheckpointError


def test_what_a_job_returns_or_raises_comes_back() -> None:
    openings = Openings(60)
    assert openings.run("here", lambda: 5) == 5
    with pytest.raises(CheckpointError, match="broken"):
        openings.run("here", broken)
    with pytest.raises(TimeoutError, match="its own"):
        openings.run("here", timed_out)
    assert openings.hanging == 0


def broken() -> None:
    raise CheckpointError("broken")


def timed_out() -> None:
    raise TimeoutError("its own")


def test_a_job_that_hangs_is_left_behind_and_undone_if_it_ends() -> None:
    openings, answers, undone = Openings(0.01), threading.Event(), threading.Event()
    with pytest.raises(CheckpointError, match=r"/slow could not be opened within 0\.01 s"):
        openings.run("/slow", answers.wait, lambda _: undone.set())
    assert openings.hanging == 1
    answers.set()
    undone.wait()
    assert openings.hanging == 0


def test_no_more_than_a_few_threads_hang() -> None:
    openings, answers = Openings(0.01), threading.Event()
    for _ in range(8):
        with pytest.raises(CheckpointError, match="within"):
            openings.run("/slow", answers.wait)
    with pytest.raises(CheckpointError, match="/other is not opened: 8 checkpoints"):
        openings.run("/other", lambda: 5)
    answers.set()
