"""Callbacks for errors in a checkpoint: a load raises them, `sax inspect` collects them.

Code that takes a `Complain` must be able to continue when it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from sax.errors import CheckpointError

Complain = Callable[[CheckpointError], None]


def raise_it(error: CheckpointError) -> None:
    """`Complain` for loads: fail on the first error."""
    raise error
