"""Run the cyclic garbage collector less often.

A full collection visits every live object, which in a cell of 1,000 servers costs more than several
rounds and finds nothing: rounds leave no cycles behind (a test holds that). A few cycles come from
tracebacks and connections, so the collector cannot be switched off altogether.
"""

from __future__ import annotations

import gc

_YOUNG = 50_000  # new live objects; about those of one large round
_MIDDLE = 20
_FULL = 200


def collect_seldom() -> None:
    """Set the thresholds for the whole process; call once it is set up."""
    gc.collect()
    gc.freeze()  # modules are never freed
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
