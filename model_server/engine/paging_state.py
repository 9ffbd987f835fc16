"""State of a sequence's pages: which are shared, cached, or freed before a window. Pure."""

from __future__ import annotations


class PagingState:
    """Pages of one sequence; `prefix_cache` and `window_pages` change it."""

    __slots__ = (
        "cached",
        "chain",
        "computed",
        "deferred",
        "kept",
        "reused",
        "window_pages",
        "window_known",
        "window_source",
        "window_unseen",
        "source",
        "unseen",
        "written",
    )

    def __init__(self, *, computed: bool = False) -> None:
        """computed: the runner gets keys and values for all tokens but the last from elsewhere."""
        self.computed = computed  # False once it has a slot
        self.chain: list[bytes] = []  # digests: of the salt, and of 1, 2, ... full pages
        self.cached = -1  # tokens of the prompt found at its first admission; -1: not admitted yet
        self.deferred = False  # it once waited for a step that writes tokens like its own
        # Since the sequence last took a slot:
        self.reused = 0  # positions found in the cache
        self.source = 0  # page to copy with its first chunk, held until then; 0: none
        self.written = 0  # positions in the launched steps whose tokens are known
        self.kept = 0  # full pages that others can find, or that were found
        self.unseen = 0  # pages before the window of all later queries: 0 in `pages`
        # Pages of the layers with a window, if these have their own:
        self.window_pages: list[int] = []  # as many as `pages`; [] if no layer has any
        self.window_known = 0  # tokens at the beginning that others had, too
        self.window_source = 0  # page to copy with `source`
        self.window_unseen = 0  # pages at the beginning that were freed
