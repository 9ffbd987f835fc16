"""The part of a sequence that the prefix cache knows. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Prefix(NamedTuple):
    """The beginning of a sequence that need not be computed."""

    pages: tuple[int, ...] = ()  # full: to be shared
    source: int = 0  # page to copy, 0: none
    copied: int = 0  # tokens of it that are the sequence's own
    window_pages: tuple[int, ...] = ()  # for each of `pages`; () without such layers
    window_source: int = 0  # window page to copy with `source`
    known: int = 0  # tokens of it that were found, had there been window pages for all

    def tokens(self, page_size: int) -> int:
        return len(self.pages) * page_size + self.copied


NOTHING = Prefix()
