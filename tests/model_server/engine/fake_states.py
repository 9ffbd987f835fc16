"""States of a FakeRunner: what recurrent layers remember of each slot's tokens.

A page holds one state: how many tokens went into it, and their hash. A block of tokens leaves one
where its last token lies, a draft token in a page that is in no table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.model_server.engine.fake_pages import FakePages

Hash = Callable[[int, int], int]  # the hash so far and the next token -> the next hash


class FakeStates:
    """A state for each page of layers that keep one."""

    def __init__(self, pages: FakePages, block: int, advance: Hash) -> None:
        self._pages = pages
        self._block = block
        self._advance = advance
        self._states: dict[int, tuple[int, int]] = {}  # tokens and hash, by page
        self._left = 0  # the page that the last row wrote

    def run(self, slot: int, start: int, tokens: Sequence[int], drafted: int) -> list[int]:
        """Take in the tokens of a row; returns the hash after each.

        drafted: the page of a draft token, which goes on where the row before it ended.
        """
        if drafted:
            (token,) = tokens
            return [self._drafted(slot, start, token, drafted)]
        hashes: list[int] = []
        for first in range(0, len(tokens), self._block):
            hashes += self._run(slot, start + first, tokens[first : first + self._block])
        return hashes

    def of(self, pages: Sequence[int]) -> tuple[tuple[int, int] | None, ...]:
        """The states in these pages; None: none was written."""
        return tuple(map(self._states.get, pages))

    def fill(self, pages: Sequence[int], states: Sequence[tuple[int, int] | None]) -> None:
        for page, state in zip(pages, states, strict=True):
            assert state is not None, "a state that was not written was handed over"
            self._states[page] = state

    def _drafted(self, slot: int, start: int, token: int, page: int) -> int:
        count, value = self._states[self._left]
        assert count == start, f"a draft token at {start} goes on with {count} tokens"
        index = (start - 1) // self._pages.memory.shape[1]
        assert page not in self._pages.tables[slot][index:], "the table has a draft token's page"
        self._left, value = page, self._advance(value, token)
        self._states[page] = start + 1, value
        return value

    def _run(self, slot: int, start: int, tokens: Sequence[int]) -> list[int]:
        count, value = self._states[self._page(slot, start - 1)] if start else (0, 0)
        assert count == start, f"a row goes on at {start} with a state of {count} tokens"
        hashes: list[int] = []
        for token in tokens:
            value = self._advance(value, token)
            hashes.append(value)
        last = start + len(tokens) - 1
        assert self._page(slot, start) == self._page(slot, last), "a block crosses a border"
        page, _ = self._pages.place(slot, last)
        self._states[page] = last + 1, value
        self._left = page
        return hashes

    def _page(self, slot: int, position: int) -> int:
        page = self._pages.tables[slot][position // self._pages.memory.shape[1]]
        assert page, f"the state at position {position} was freed"
        return page
