"""Numbers of pages for the layers with a sliding window, beside those of the other layers. Pure."""

from __future__ import annotations

from model_server.engine.types import EngineLimits


def near_count(limits: EngineLimits) -> int:
    """Return the pages with which a grant never fails; 0: the layers have pages in common.

    A sequence never holds more of them than of the others. Nor does it hold more than its window
    takes, beside what one step computes, and a page that it copies.
    """
    return min(limits.pages, most_near(limits))


def most_near(limits: EngineLimits) -> int:
    """Return the pages that all slots need at once, however many tokens their sequences have.

    With a prefix cache, as many again keep the last windows of those who left.
    """
    if limits.near_window is None:
        return 0
    # Two positions may be done again; draft tokens lie behind the next one, and some came true
    # since.
    seen = limits.near_window + 2 + 2 * limits.draft_tokens
    window = -(-seen // limits.page_size) + 1
    begun, copied = 1, not limits.recurrent  # of a page with a state no part is copied
    pages = limits.slots * (window + begun + copied) + limits.token_budget // limits.page_size
    return pages if limits.prefix_cache == "off" else 2 * pages


def most_near_seen(limits: EngineLimits) -> int:
    """Return the near pages that one query sees at most, of tokens before it."""
    if limits.near_window is None:
        return 0
    before = max(1, limits.near_window - 1)
    return min(limits.pages_per_sequence, -(-(before - 1) // limits.page_size) + 1)


def first_near_seen(limits: EngineLimits, position: int) -> int:
    """Return the index of the first near page that a query at a position sees."""
    assert limits.near_window is not None, "all layers have pages in common"
    return max(0, position + 1 - limits.near_window) // limits.page_size
