"""When a model server is ready, as a cluster should see it. Pure.

Not when it listens: a rollout would go on to the next replica before this one has its model. Ready
is who has joined and loads nothing: either a model is loaded, or nobody gave it one for a while.
"""

from __future__ import annotations

from collections.abc import Collection

# The admin server hears of a server at once, and decides within a second or two.
NOTHING_CAME_S = 10.0


def why_not_ready(
    *, joined_for_s: float | None, loading: Collection[str], loaded: Collection[str]
) -> str:
    """What is waited for, in words; "": ready. `joined_for_s` is None before the server joined."""
    if joined_for_s is None:
        return "not joined to an admin server"
    if loading:
        return f"loading {', '.join(sorted(loading))}"
    if not loaded and joined_for_s < NOTHING_CAME_S:
        return "joined just now: waiting for a model to load"
    return ""
