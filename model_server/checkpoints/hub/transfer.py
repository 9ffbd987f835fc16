"""A download that reports its progress, and that a cancelled load stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sax.types import Progress

_TELL_S = 0.2


class Transfer:
    """Counts bytes. One thread downloads; the load's own thread reports."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = 0
        self._stopped = False
        self._guard = threading.Lock()

    def run(self, work: Callable[[], None], report: Callable[[Progress], None]) -> None:
        """Return when `work` has; raises what it raises, and what `report` raises.

        A thread that waits for the network is left behind; it ends at its next bytes.
        """
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=guarded, name="download", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self.tell(report)
                thread.join(_TELL_S)
        except BaseException:
            self._stopped = True
            raise
        if failures:
            raise failures[0]
        self.tell(report)

    def tell(self, report: Callable[[Progress], None]) -> None:
        report(Progress("downloading", min(self._done, self.total), self.total, "bytes"))

    def add(self, count: int) -> None:
        if self._stopped:
            raise DownloadStopped
        with self._guard:
            self._done += count

    def bar(self) -> type[Any]:
        """Return what huggingface_hub takes for the class of a progress bar."""
        from huggingface_hub.utils import tqdm

        transfer = self

        class CountingBar(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "disable": True})
                transfer.add(int(kwargs.get("initial") or 0))

            def update(self, n: float | None = 1) -> bool | None:
                transfer.add(int(n or 0))
                return None

            def update_transfer(self, n: float | None = 1) -> None:
                """Bytes of the network, which `update` counts once they are in the file."""

        return CountingBar


class DownloadStopped(Exception):
    """Nobody waits for the file any more."""
