"""How seldom this process looks for reference cycles.

A full look touches every value that is alive, which in a cell of 1,000 servers costs more than
several rounds, and finds nothing: what rounds leave behind is in no cycle (a test holds that). A
few cycles come from error traces and connections, so that it cannot be left out altogether.
"""

from __future__ import annotations

import gc

_YOUNG = 50_000  # values made and still alive; about those of one large round
_MIDDLE = 20
_FULL = 200


def collect_seldom() -> None:
    """For the whole process, once it is set up."""
    gc.collect()
    gc.freeze()  # modules stay for ever
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
