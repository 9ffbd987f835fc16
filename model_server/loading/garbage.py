"""Keeps Python's garbage collector from stopping streams.

A full collection looks at every object while all threads wait. The vocabularies and traces of a
model are hundreds of thousands of objects, so it would take some 150 ms, again and again while a
model is compiled. What stays is therefore taken out of the collector's rounds.
"""

from __future__ import annotations

import gc


def settle() -> None:
    """Let no later collection look at what is in memory now; takes a few milliseconds.

    These objects are freed as always once nothing refers to them. Only cycles among them stay, so
    call this when few temporary objects are about.
    """
    gc.collect(1)  # the young ones, or their cycles would stay
    gc.freeze()
