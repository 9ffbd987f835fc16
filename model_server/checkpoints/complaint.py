"""What to do about something wrong in a checkpoint: a load raises it, an inspection goes on.

Whoever is handed a `Complain` must be able to go on when it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from sax.errors import CheckpointError

Complain = Callable[[CheckpointError], None]


def raise_it(error: CheckpointError) -> None:
    """The complaint of a load."""
    raise error
