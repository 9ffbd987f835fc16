"""Answers of an engine with the bits of their log-probabilities, to compare two runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.parts.routed_experts import ShowRoutes, ToldRoutes
from model_server.engine.running.ops import Runner
from model_server.engine.step_times import StepTimes


class Answer(NamedTuple):
    """What a request got."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the tokens, or of the prompt's where these are scored


class Recorder:
    """One engine whose deliveries are kept until all requests of a call have ended."""

    def __init__(self, runner: Runner, times: StepTimes | None = None) -> None:
        self.engine = Engine(runner, self._deliver, times)
        self._found: dict[int, tuple[list[int], list[float]]] = {}
        self._place = threading.Semaphore(0)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            assert update.error is None, update.error
            tokens, logprobs = self._found.setdefault(update.sequence, ([], []))
            logprobs += update.result.target_logprobs
            if update.result.token is not None:
                tokens.append(update.result.token)
                logprobs.append(update.result.logprob)
            if update.finish is not None:
                self._place.release()

    def answers(self, requests: Sequence[EngineRequest], at_once: int = 1) -> list[Answer]:
        """Return what each request gets, with at most so many of them in the engine."""
        ids: list[int] = []
        for number, request in enumerate(requests):
            if number >= at_once:
                self._place.acquire()
            ids.append(self.engine.submit(request))
        for _ in range(min(at_once, len(ids))):
            self._place.acquire()
        found = [self._found.pop(id) for id in ids]
        return [Answer(tuple(tokens), tuple(logprobs)) for tokens, logprobs in found]

    def close(self) -> None:
        self.engine.drain(60)


class RouteRecorder(Recorder):
    """Also keeps the experts that each sequence was told of."""

    def __init__(self, runner: Runner, times: StepTimes | None = None) -> None:
        self._routes: dict[int, ToldRoutes] = {}
        super().__init__(runner, times)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            self._routes.setdefault(update.sequence, ToldRoutes()).add(update.routes)
        super()._deliver(updates)

    def routed(self, asked: Sequence[EngineRequest], at_once: int = 1) -> list[np.ndarray]:
        """Return the experts of all tokens of each request but the last: u8[n, L, k]."""
        self._routes.clear()
        shown = [replace(each, settings=(*each.settings, ShowRoutes())) for each in asked]
        found = zip(asked, self.answers(shown, at_once), sorted(self._routes), strict=True)
        return [
            self._routes[id].first(len(each.prompt + each.answer + answer.tokens) - 1)
            for each, answer, id in found
        ]


def scoring(request: EngineRequest, answer: Answer) -> EngineRequest:
    """Return the request that scores an answer as part of its prompt."""
    return replace(
        request,
        prompt=(*request.prompt, *answer.tokens),
        max_tokens=0,
        score_from=len(request.prompt),
    )


def unlike(wanted: Sequence[Answer], found: Sequence[Answer]) -> list[int]:
    """Return the places where a bit differs."""
    pairs = zip(wanted, found, strict=True)
    return [place for place, (one, other) in enumerate(pairs) if one != other]
