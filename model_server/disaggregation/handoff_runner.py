"""Imports a sequence's pages before its first step here, or exports them when its prompt is done.

Wraps an engine's runner; the engine and its steps are unaware of it. Sequences that came from
another server, or are computed for one, are recorded here by id. The first row of a sequence to be
imported triggers the import; the row that ends a prompt, which yields a token, the export.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_server.disaggregation.handed_pages import PageNumbers, pick
from model_server.engine.running.ops import ExportPages, Forwarding, ImportPages, Pending, Runner
from model_server.engine.types import Row, Step, StepResult


class PageKeeper(Protocol):
    """Keeps pages on their way."""

    def drop(self, key: int) -> None:
        """Free what is kept under the key, if anything is."""
        ...


@dataclass(frozen=True, slots=True)
class _Import:
    key: int
    token: int  # the answer's first, computed with the pages


class HandoffRunner(Forwarding):
    """The engine's thread launches; any thread announces and forgets sequences."""

    def __init__(self, runner: Runner, transfers: PageKeeper) -> None:
        """runner: one whose pages can be moved, on all of its hosts."""
        super().__init__(runner)
        self._transfers = transfers
        slots = range(runner.limits.slots)
        self._tables: list[list[int]] = [[] for _ in slots]  # pages by slot
        self._window_pages: list[list[int]] = [[] for _ in slots]  # likewise, of window layers
        self._lock = threading.Lock()  # guards both below
        self._imports: dict[int, _Import] = {}  # by sequence
        self._exports: dict[int, int] = {}  # keys by sequence

    def expect_import(self, sequence: int, key: int, token: int) -> None:
        """Fill the sequence's pages with those fetched under the key before its first row.

        As for `expect_export`, call this before any step can contain the sequence.
        """
        with self._lock:
            self._imports[sequence] = _Import(key, token)

    def expect_export(self, sequence: int, key: int) -> None:
        """Offer the sequence's pages under the key once its prompt is computed."""
        with self._lock:
            self._exports[sequence] = key

    def forget(self, sequence: int) -> None:
        """Free the fetched pages of a sequence that was cancelled; never export it.

        Steps launched before the engine notices may still have its rows: their results are
        dropped, so it does not matter what its pages hold.
        """
        with self._lock:
            arriving = self._imports.pop(sequence, None)
            self._exports.pop(sequence, None)
        if arriving is not None:
            self._transfers.drop(arriving.key)

    def launch(self, *steps: Step) -> Pending[Sequence[StepResult]]:
        rows = [row for step in steps for row in step.rows]
        for grant in (grant for step in steps for grant in step.grants):
            self._tables[grant.slot][grant.first :] = grant.pages
            self._window_pages[grant.slot][grant.first :] = grant.window_pages
        for row, arriving in self._arriving(rows):
            numbers = self._numbers(row, row.start)
            self._runner.do(ImportPages(arriving.key, *numbers, row.slot, arriving.token))
        pending = self._runner.launch(*steps)
        for row, key in self._leaving(rows):
            self._runner.do(ExportPages(key, *self._numbers(row, row.start + row.count)))
            with self._lock:
                wanted = self._exports.pop(row.sequence, None) is not None
            if not wanted:  # cancelled meanwhile: the offer just made must be dropped here
                self._transfers.drop(key)
        return pending

    def _arriving(self, rows: Sequence[Row]) -> list[tuple[Row, _Import]]:
        with self._lock:
            if not self._imports:
                return []
            return [
                (row, self._imports.pop(row.sequence))
                for row in rows
                if row.sequence in self._imports
            ]

    def _leaving(self, rows: Sequence[Row]) -> list[tuple[Row, int]]:
        with self._lock:
            if not self._exports:
                return []
            return [
                (row, self._exports[row.sequence])
                for row in rows
                if row.yields and row.sequence in self._exports
            ]

    def _numbers(self, row: Row, tokens: int) -> PageNumbers:
        return pick(self.limits, self._tables[row.slot], self._window_pages[row.slot], tokens)
