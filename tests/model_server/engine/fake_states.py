"""States of a FakeRunner: what recurrent layers remember of each slot's tokens.

A page holds one state: how many tokens went into it, and their hash. A block of tokens leaves one
where its last token lies.
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

    def run(self, slot: int, start: int, tokens: Sequence[int]) -> list[int]:
        """Take in the tokens of a row; returns the hash after each."""
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
        return hashes

    def _page(self, slot: int, position: int) -> int:
        page = self._pages.tables[slot][position // self._pages.memory.shape[1]]
        assert page, f"the state at position {position} was freed"
        return page
