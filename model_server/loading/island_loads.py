"""A model on several islands: it is loaded again on one that was lost and returned."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from model_server.engine.types import HeldRunner

logger = logging.getLogger(__name__)

_PROBE_S = 0.5  # between looks at a lost island
_WATCH_S = 1.0  # and at those that compute: one that rests raises nothing when it is lost
_PATIENCE_S = 60.0  # that sequences wait for one, where none is left

Load = Callable[[int], HeldRunner]
Back = Callable[[str, HeldRunner], None]


class IslandLoads:
    """The runners of one model, one per island. Thread-safe."""

    def __init__(
        self,
        model_id: str,
        load: Load,
        answers: Callable[[int], bool],
        runners: Mapping[int, HeldRunner],
        elastic: int | None = None,
    ) -> None:
        """load: builds the model on an island once more. answers: False while it is lost.

        elastic: islands that may be lost while the model is ready; None: all but one.
        """
        self._model_id = model_id
        self._load = load
        self._answers = answers
        self._runners = {str(number): runner for number, runner in runners.items()}
        self.count = len(runners)
        # That must compute for the model to be ready.
        self.least = 1 if elastic is None else max(1, self.count - elastic)
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def runners(self) -> Mapping[str, HeldRunner]:
        return MappingProxyType(self._runners)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def lost(self, island: str, back: Back, give_up: Callable[[], None]) -> None:
        """Free what was there; call `back` once the model is there again.

        give_up: called if that takes longer than waiting sequences should.
        """
        threading.Thread(
            target=self._bring_back,
            args=(island, back, give_up),
            name=f"island {island} of {self._model_id}",
            daemon=True,
        ).start()

    def watch(self, gone: Callable[[str], None]) -> None:
        """Call `gone`, on another thread, for islands that no longer answer."""
        name = f"islands of {self._model_id}"
        threading.Thread(target=self._watch, args=(gone,), name=name, daemon=True).start()

    def _watch(self, gone: Callable[[str], None]) -> None:
        while not self._closed.wait(_WATCH_S):
            for island in list(self._runners):
                if not self._answers(int(island)) and not self._closed.is_set():
                    gone(island)

    def end(self) -> None:
        """Bring back nothing from now on."""
        with self._lock:
            self._closed.set()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            runners = list(self._runners.values())
            self._runners.clear()
        for runner in runners:
            runner.close()

    def _bring_back(self, island: str, back: Back, give_up: Callable[[], None]) -> None:
        with self._lock:
            gone = self._runners.pop(island, None)
        if gone is not None:
            gone.close()
        lost_at_s = time.monotonic()
        while not self._closed.wait(_PROBE_S):
            if time.monotonic() - lost_at_s > _PATIENCE_S:
                give_up()
            if (runner := self._loaded_again(int(island))) is not None:
                self._keep(island, runner, back)
                took_s = time.monotonic() - lost_at_s
                logger.info("%s: island %s is back after %.1f s", self._model_id, island, took_s)
                return

    def _loaded_again(self, island: int) -> HeldRunner | None:
        """Return None if the island is still lost, or is lost again."""
        try:
            return self._load(island) if self._answers(island) else None
        except Exception as exc:
            logger.warning("%s: not yet back on island %d: %s", self._model_id, island, exc)
            return None

    def _keep(self, island: str, runner: HeldRunner, back: Back) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._runners[island] = runner
                back(island, runner)
                return
        runner.close()
