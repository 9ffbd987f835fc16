"""A model on several islands: it is loaded again on those that were lost and returned.

A copy of it lies on one island, or in stages on several, which are lost and return together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

from model_server.disaggregation.island_moves import IslandMoves
from model_server.engine.islands.island_runner import IslandRunner
from model_server.islands import Copy, copy_name

logger = logging.getLogger(__name__)

_PROBE_S = 0.5  # between looks at a lost island
_WATCH_S = 1.0  # and at those that compute: one that rests raises nothing when it is lost
_PATIENCE_S = 60.0  # that sequences wait for one, where none is left

Load = Callable[[Copy], IslandRunner]
# Takes the name of a copy, and its lanes.
Back = Callable[..., None]


class IslandLoads:
    """The runners of one model, one per copy. Thread-safe."""

    def __init__(
        self,
        model_id: str,
        load: Load,
        answers: Callable[[int], bool],
        runners: Mapping[Copy, IslandRunner],
        elastic: int | None = None,
        moves: IslandMoves | None = None,
    ) -> None:
        """load: builds a copy of the model once more. answers: False while an island is lost.

        elastic: islands that may be lost while the model is ready; None: all but one copy's. moves:
        of pages, where some islands compute prompts for the others.
        """
        self.moves = moves
        self._model_id = model_id
        self._load = load
        self._answers = answers
        self._copies = {copy_name(copy): copy for copy in runners}
        self._runners = {copy_name(copy): runner for copy, runner in runners.items()}
        self.count = sum(map(len, runners))
        # Islands that must compute for the model to be ready.
        self._least = len(next(iter(runners)))
        if elastic is not None:
            self._least = max(self._least, self.count - elastic)
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def lanes(self) -> Mapping[str, Collection[IslandRunner]]:
        """The runners of each copy, by its name."""
        return {name: runner.lanes for name, runner in self._runners.items()}

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def lost_of(self, computing: Collection[str]) -> int:
        """Return how many islands do not compute, given the copies that do."""
        return self.count - sum(len(self._copies[name]) for name in computing)

    def suffice(self, computing: Collection[str]) -> bool:
        """Return True if the copies that compute are enough for the model to be ready."""
        return self.count - self.lost_of(computing) >= self._least

    def lost(self, name: str, back: Back, give_up: Callable[[], None]) -> None:
        """Free what was there of a copy; call `back` once the model is there again.

        give_up: called if that takes longer than waiting sequences should.
        """
        threading.Thread(
            target=self._bring_back,
            args=(name, back, give_up),
            name=f"island {name} of {self._model_id}",
            daemon=True,
        ).start()

    def watch(self, gone: Callable[[str], None]) -> None:
        """Call `gone`, on another thread, for copies with an island that no longer answers."""
        name = f"islands of {self._model_id}"
        threading.Thread(target=self._watch, args=(gone,), name=name, daemon=True).start()

    def _watch(self, gone: Callable[[str], None]) -> None:
        while not self._closed.wait(_WATCH_S):
            for name in list(self._runners):
                if not self._answer(name) and not self._closed.is_set():
                    gone(name)

    def _answer(self, name: str) -> bool:
        return all(map(self._answers, self._copies[name]))

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
            _close(runner)
        if self.moves is not None:
            self.moves.close()

    def _bring_back(self, name: str, back: Back, give_up: Callable[[], None]) -> None:
        with self._lock:
            gone = self._runners.pop(name, None)
        if gone is not None:
            _close(gone)
        lost_at_s = time.monotonic()
        while not self._closed.wait(_PROBE_S):
            if time.monotonic() - lost_at_s > _PATIENCE_S:
                give_up()
            if (runner := self._loaded_again(name)) is not None:
                self._keep(name, runner, back)
                took_s = time.monotonic() - lost_at_s
                logger.info("%s: island %s is back after %.1f s", self._model_id, name, took_s)
                return

    def _loaded_again(self, name: str) -> IslandRunner | None:
        """Return None if an island is still lost, or is lost again."""
        try:
            return self._load(self._copies[name]) if self._answer(name) else None
        except Exception as exc:
            logger.warning("%s: not yet back on island %s: %s", self._model_id, name, exc)
            return None

    def _keep(self, name: str, runner: IslandRunner, back: Back) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._runners[name] = runner
                back(name, *runner.lanes)
                return
        _close(runner)


def _close(runner: IslandRunner) -> None:
    for lane in runner.lanes:
        lane.close()
