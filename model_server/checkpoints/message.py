"""Callbacks for errors in a checkpoint: a load raises them, `sax inspect` collects them.

Code that takes a `ErrorHandler` must be able to continue when it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from sax.errors import CheckpointError

ErrorHandler = Callable[[CheckpointError], None]


def raise_error(error: CheckpointError) -> None:
    """`ErrorHandler` for loads: fail on the first error."""
    raise error
