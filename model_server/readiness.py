"""Readiness of a model server, as probes report it. Pure.

Listening is not enough: a rollout would go on to the next replica before this one has its model. A
server is ready once it has joined and is not loading: either a model is loaded, or none was
assigned for a while.
"""

from __future__ import annotations

from collections.abc import Collection

# The admin learns of a server at once and assigns models within a second or two.
NOTHING_CAME_S = 10.0


def why_not_ready(
    *, joined_for_s: float | None, loading: Collection[str], loaded: Collection[str]
) -> str:
    """Return why the server is not ready, or "". `joined_for_s` is None before the first join."""
    if joined_for_s is None:
        return "not joined to an admin server"
    if loading:
        return f"loading {', '.join(sorted(loading))}"
    if not loaded and joined_for_s < NOTHING_CAME_S:
        return "joined just now: waiting for a model to load"
    return ""
