"""Numbers of pages for the layers with a sliding window, beside those of the other layers. Pure."""

from __future__ import annotations

from model_server.engine.limits import EngineLimits


def window_page_count(limits: EngineLimits) -> int:
    """Return the pages with which a grant never fails; 0: the layers have pages in common.

    A sequence never holds more of them than of the others. Nor does it hold more than its window
    takes, beside what one step computes, and a page that it copies. The states behind draft tokens
    have further pages.
    """
    return min(limits.pages, most_window_pages(limits)) + limits.draft_states


def most_window_pages(limits: EngineLimits) -> int:
    """Return the pages that all slots need at once, however many tokens their sequences have.

    With a prefix cache, as many again keep the last windows of those who left.
    """
    if limits.windows.sliding is None:
        return 0
    # Two positions may be done again; draft tokens lie behind the next one, and some came true
    # since.
    seen = limits.windows.sliding + 2 + 2 * limits.draft_tokens
    window = -(-seen // limits.page_size) + 1
    begun, copied = 1, not limits.windows.recurrent  # of a page with a state no part is copied
    pages = limits.slots * (window + begun + copied) + limits.token_budget // limits.page_size
    return pages if limits.prefix_cache == "off" else 2 * pages


def most_window_pages_seen(limits: EngineLimits) -> int:
    """Return the window pages that one query sees at most, of tokens before it."""
    if limits.windows.sliding is None:
        return 0
    before = max(1, limits.windows.sliding - 1)
    return min(limits.pages_per_sequence, -(-(before - 1) // limits.page_size) + 1)


def first_window_page_seen(limits: EngineLimits, position: int) -> int:
    """Return the index of the first window page that a query at a position sees."""
    assert limits.windows.sliding is not None, "all layers have pages in common"
    return max(0, position + 1 - limits.windows.sliding) // limits.page_size
