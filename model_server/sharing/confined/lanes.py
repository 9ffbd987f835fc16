"""Two processes with limits that answer one kind of question: a quick and a slow lane.

All questions go to the quick lane. One that exceeds its limit is stopped there and asked again in
the slow lane, and for a while all questions with its key go there at once. So one that runs away
delays the others by the quick lane's limit and the start of a process, once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from model_server.sharing.confined.process import ProcessEnded, ProcessStarved

_SLOW_FOR_S = 60.0  # how long a key stays in the slow lane after its last slow question
_IDLE_S = 60.0  # after this the slow lane's process ends; its next question starts another
_NICE = 5  # a slow lane computes when the engine leaves processor time
_MOST_MARKED = 1000  # keys remembered as slow

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
_Given = TypeVar("_Given", contravariant=True)
_Made = TypeVar("_Made", covariant=True)


class AnsweringProcess(Protocol[_Given, _Made]):
    def answer(self, ask: _Given, /) -> _Made:
        """Raises ProcessEnded for a question that ended it, ProcessStarved where the machine is too
        busy, and what else the future shall."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LaneKind(Generic[Asked, Answered]):
    """A kind of question: the process that answers it, its limits, and its errors."""

    name: str  # of the threads
    doing: str  # for messages, as in "to compile it"
    process: Callable[[float, int], AnsweringProcess[Asked, Answered]]  # by seconds and niceness
    quick_s: float  # processor time of a question in the quick lane
    slow_s: float  # and in the slow one
    niceness: int = 0  # of the quick lane
    wait_s: float  # a question that waited longer in the slow lane is refused
    refused: Callable[[str, float], Exception]  # by the reason, and after how many seconds to retry
    ended: Callable[[str], Answered]  # the answer by how the slow lane's process ended
    spent: Callable[[Answered], bool]  # whether the process that gave it may have no memory left


@dataclass(eq=False)
class _Question(Generic[Asked, Answered]):
    key: bytes
    ask: Asked
    patient: bool = False  # it waits as long as it takes
    answer: Future[Answered] = field(default_factory=Future)
    since_s: float = field(default_factory=time.monotonic)
    begun: bool = False

    def begin(self) -> bool:
        """Return False if nobody waits for the answer any more."""
        self.begun = self.begun or self.answer.set_running_or_notify_cancel()
        return self.begun


class _SlowKeys:
    """The keys of questions that were slow lately."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def add(self, key: bytes) -> None:
        if len(self._until_s) >= _MOST_MARKED:
            self._until_s.clear()
        self._until_s[key] = time.monotonic() + _SLOW_FOR_S

    def __contains__(self, key: bytes) -> bool:
        return self._until_s.get(key, 0.0) > time.monotonic()


class _Lane(Generic[Asked, Answered]):
    def __init__(
        self,
        kind: LaneKind[Asked, Answered],
        slow: _SlowKeys,
        pass_on: Callable[[_Question[Asked, Answered]], None] | None = None,
    ) -> None:
        """pass_on: takes the slow questions; None: they are answered here."""
        self._kind = kind
        quick = pass_on is not None
        self._name = kind.name if quick else f"slow {kind.name}"
        self._process = kind.process(
            *((kind.quick_s, kind.niceness) if quick else (kind.slow_s, kind.niceness + _NICE))
        )
        self._slow = slow
        self._pass_on = pass_on
        self._idle_s = None if quick else _IDLE_S
        self._questions: SimpleQueue[_Question[Asked, Answered]] = SimpleQueue()
        self._starting = threading.Lock()
        self._started = False

    def put(self, question: _Question[Asked, Answered]) -> None:
        self._questions.put(question)
        with self._starting:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                question = self._questions.get(timeout=self._idle_s)
            except Empty:
                self._process.stop()
                question = self._questions.get()
            self._take(question)
            del question  # keep none alive while waiting

    def _take(self, question: _Question[Asked, Answered]) -> None:
        if self._pass_on is not None and question.key in self._slow:
            self._pass_on(question)
        elif question.begin():
            try:
                self._do(question)
            except Exception as exc:
                question.answer.set_exception(exc)

    def _do(self, question: _Question[Asked, Answered]) -> None:
        at_once = question.patient or self._pass_on
        if not at_once and time.monotonic() - question.since_s > self._kind.wait_s:
            wait_s = self._kind.wait_s
            why = f"others that are slow {self._kind.doing} took {wait_s:g} s: send it later"
            raise self._kind.refused(why, wait_s)
        try:
            answer = self._process.answer(question.ask)
        except OSError as exc:
            why = f"no process can be started {self._kind.doing}: {exc}"
            raise self._kind.refused(why, self._kind.wait_s) from exc
        except ProcessStarved as exc:  # the slow lane is for questions that are slow by themselves
            raise self._kind.refused(f"{exc}: send it later", self._kind.wait_s) from exc
        except ProcessEnded as exc:
            self._begin_again(question.key)
            if self._pass_on is not None:
                question.since_s = time.monotonic()  # it waits for others from here on
                self._pass_on(question)
                return
            answer = self._kind.ended(str(exc))
        else:
            if self._kind.spent(answer):
                self._begin_again(question.key)
        question.answer.set_result(answer)

    def _begin_again(self, key: bytes) -> None:
        """Begin with another process: this one has ended, or its memory may be full."""
        self._slow.add(key)
        self._process.stop()
        with suppress(OSError):  # then the next question tells
            self._process.start()


class Lanes(Generic[Asked, Answered]):
    """Thread-safe. Its processes start with the first question and end with this one."""

    def __init__(self, kind: LaneKind[Asked, Answered]) -> None:
        slow = _SlowKeys()
        self._slow = _Lane(kind, slow)
        self._quick = _Lane(kind, slow, self._slow.put)

    def submit(self, key: bytes, ask: Asked) -> Future[Answered]:
        """Asked. The future raises Unavailable, and what `answer` of the process raises."""
        question = _Question[Asked, Answered](key, ask)
        self._quick.put(question)
        return question.answer

    def try_out(self, key: bytes, ask: Asked) -> Answered:
        """Asked what nobody asked yet, away from the others. Blocks."""
        question = _Question[Asked, Answered](key, ask, patient=True)
        self._slow.put(question)
        return question.answer.result()
