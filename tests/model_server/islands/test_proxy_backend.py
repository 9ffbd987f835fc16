"""Only threads that begin inside have timers that may be late."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

from model_server.islands.proxy_backend import LATE_NS, late_timers

_GET = 30  # PR_GET_TIMERSLACK


def slack_ns() -> int:
    return ctypes.CDLL(None).prctl(_GET)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_threads_that_begin_inside_may_be_late_and_nobody_else() -> None:
    before = slack_ns()
    found: list[int] = []
    with late_timers():
        inside = threading.Thread(target=lambda: found.append(slack_ns()))
        inside.start()
    inside.join()
    outside = threading.Thread(target=lambda: found.append(slack_ns()))
    outside.start()
    outside.join()
    assert found == [LATE_NS, before]
    assert slack_ns() == before
