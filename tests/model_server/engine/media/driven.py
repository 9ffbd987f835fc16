"""A scheduler and a runner, driven in one thread as the engine does."""

from __future__ import annotations

from typing import Any

from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.scheduler import Scheduler


class Driven:
    """Launches a step and then a batch of the encoder before it reads the step before."""

    def __init__(self, limits: EngineLimits, runner: Any) -> None:
        self.limits = limits
        self.runner = runner
        self.scheduler = Scheduler(limits)
        self.updates: dict[int, list[SequenceUpdate]] = {}
        self.steps: list[Any] = []
        self.log: list[str] = []  # of launches: step, encode
        self._pending: list[Any] = []
        self._next = 1

    def add(self, asked: EngineRequest) -> int:
        id = self._next
        self._next += 1 if asked.beams is None else asked.beams.size
        self.scheduler.add(new_sequence(id, asked, self.limits))
        self.updates[id] = []
        return id

    def turn(self) -> bool:
        """One round; False if there was nothing to do."""
        step = self.scheduler.schedule()
        launched = [(step, self.runner.launch(step))] if step else []
        self.log += ["step"] * bool(step)
        self.steps += [step] * bool(step)
        if (op := self.scheduler.op()) is not None:
            self.runner.do(op)
            self.log.append("encode")
        for each, pending in self._pending:
            for update in self.scheduler.commit(each, pending.result()[0]):
                self.updates[update.sequence].append(update)
        busy = bool(launched or self._pending or op)
        self._pending = launched
        return busy

    def run(self) -> None:
        while self.scheduler.load().live or self._pending:
            assert self.turn(), "live, but nothing to do"

    def tokens(self, id: int) -> list[int]:
        results = [update.result for update in self.updates[id]]
        return [each.token for each in results if each.token is not None]

    def logprobs(self, id: int) -> list[float]:
        """Log-probabilities of the answer's tokens."""
        results = [update.result for update in self.updates[id]]
        return [each.logprob for each in results if each.token is not None]

    def last(self, id: int) -> SequenceUpdate:
        return self.updates[id][-1]
