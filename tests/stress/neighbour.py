"""A light user beside an attack: one stream after the other through the gateway."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell

_TOKENS = 200  # of one stream
_WARM_UP = 8  # tokens before the attack begins


class Neighbour:
    """Streams completions from entry to exit, and notes every pause and every error."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._stop = threading.Event()
        self._warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neighbour")
        self._tokens = 0
        self.longest_gap_s = 0.0
        self.errors: list[str] = []

    @staticmethod
    @contextmanager
    def absent() -> Iterator[Neighbour]:
        """Nobody: for attacks on the only replica."""
        nobody = Neighbour.__new__(Neighbour)
        nobody.longest_gap_s, nobody.errors = 0.0, []
        yield nobody

    def __enter__(self) -> Neighbour:
        self._thread.start()
        assert self._warm.wait(60), f"the neighbour got no tokens: {self.errors}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        with httpx.Client(
            base_url=self._cell.url, timeout=60, trust_env=False, headers=self._cell.headers
        ) as http:
            while not self._stop.is_set():
                try:
                    self._stream(http)
                except (httpx.HTTPError, AssertionError) as error:
                    self.errors.append(f"{type(error).__name__}: {error}"[:200])
                    self._warm.set()
                    time.sleep(0.1)

    def _stream(self, http: httpx.Client) -> None:
        body = {
            "model": SMOLLM2,
            "prompt": "Once upon a time",
            "max_tokens": _TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        with http.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                raise AssertionError(f"{reply.status_code} {reply.read().decode()[:150]}")
            last_s = 0.0  # the first token's wait is not a gap of a stream
            for line in reply.iter_lines():
                if self._stop.is_set():
                    return
                if not line.startswith("data: {"):
                    continue
                assert '"error"' not in line, line[:150]
                now = time.monotonic()
                self._note(now - last_s if last_s else 0.0)
                last_s = now

    def _note(self, gap_s: float) -> None:
        self._tokens += 1
        if self._tokens == _WARM_UP:
            self._warm.set()
        elif self._tokens > _WARM_UP:
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
