"""Clients that stream completions through the gateway all the time, and what each came to.

Threads with real sockets. A request that has no end by its deadline counts as one that hangs.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

DEADLINE_S = 60.0
_PAUSE_S = 0.1  # after an error; a client that is told to come back comes back soon
_ANSWER = "answer"


@dataclass(eq=False)
class Asked:
    """One request. `outcome`: "answer", the code of an error, or how a promise was broken."""

    began_s: float
    text: str = ""
    outcome: str = ""
    broken: bool = False  # it hung, or ended without a word
    ended_s: float = 0.0


@dataclass
class Clients:
    """Ask for one greedy answer again and again. Use as a context manager."""

    url: str
    model: str
    count: int
    tokens: int
    asked: list[Asked] = field(default_factory=list[Asked])
    _running: set[Asked] = field(default_factory=set[Asked])
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _ended: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Clients:
        for _ in range(self.count):
            self._threads.append(threading.Thread(target=self._ask_on, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_S)

    def in_flight(self) -> list[Asked]:
        """Requests that have no end yet."""
        with self._changed:
            return list(self._running)

    def ends_of(self, some: list[Asked]) -> float | None:
        """When the last of these ended; None: one has not, long after its deadline."""
        with self._changed:
            over = self._changed.wait_for(lambda: all(a.outcome for a in some), 2 * DEADLINE_S)
            return max((a.ended_s for a in some), default=time.monotonic()) if over else None

    def answer_after(self, moment_s: float, within_s: float) -> Asked | None:
        """The first answer to a request that was made after this moment."""

        def found() -> Asked | None:
            later = (a for a in self.asked if a.began_s > moment_s and a.outcome == _ANSWER)
            return min(later, key=lambda a: a.ended_s, default=None)

        with self._changed:
            return self._changed.wait_for(found, within_s) or None

    def outcomes(self) -> Counter[str]:
        with self._changed:
            return Counter(a.outcome for a in self.asked)

    def complaints(self) -> list[str]:
        """Promises that were broken: hangs, ends without a word, and tokens that are not the same.

        Whatever becomes of a replica, what it streamed is the beginning of the one answer there is.
        """
        with self._changed:
            answers = {a.text for a in self.asked if a.outcome == _ANSWER}
            broken = [f"a request ended with: {a.outcome}" for a in self.asked if a.broken]
            others = [a.text for a in self.asked if a.outcome != _ANSWER]
        if len(answers) != 1:
            broken.append(f"{len(answers)} different answers to one greedy question")
        if not all(any(full.startswith(text) for full in answers) for text in others):
            broken.append("a stream that broke had begun otherwise than the answers do")
        return broken

    def _ask_on(self) -> None:
        with httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False) as http:
            while not self._ended.is_set():
                one = Asked(time.monotonic())
                with self._changed:
                    self._running.add(one)
                outcome, broken = self._ask(http, one)
                with self._changed:
                    one.outcome, one.broken, one.ended_s = outcome, broken, time.monotonic()
                    self._running.discard(one)
                    self.asked.append(one)
                    self._changed.notify_all()
                if outcome != _ANSWER:
                    self._ended.wait(_PAUSE_S)

    def _ask(self, http: httpx.Client, one: Asked) -> tuple[str, bool]:
        body = {"model": self.model, "prompt": "How many days are in a week?", "stream": True}
        body |= {"max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        try:
            with http.stream("POST", "/v1/completions", json=body) as response:
                if response.is_success:
                    return _read(response, one)
                return _code(json.loads(response.read())), False
        except httpx.TimeoutException:
            return f"nothing for {DEADLINE_S:g} s", True
        except (httpx.TransportError, ValueError) as exc:
            return f"no typed error: {type(exc).__name__}: {exc}", True


def _read(response: httpx.Response, one: Asked) -> tuple[str, bool]:
    """The events of one stream to their end."""
    finished = False
    for line in response.iter_lines():
        if time.monotonic() - one.began_s > DEADLINE_S:
            return f"no end within {DEADLINE_S:g} s", True
        word = line.removeprefix("data: ")
        if word == "[DONE]":
            return (_ANSWER, False) if finished else ("an end without a finish reason", True)
        if not word.startswith("{"):
            continue
        event = json.loads(word)
        if "error" in event:
            return _code(event), False
        for choice in event["choices"]:
            one.text += choice["text"]
            finished = finished or choice["finish_reason"] is not None
    return "the stream ended without a word", True


def _code(body: dict[str, Any]) -> str:
    """Raises ValueError where there is none."""
    code = body.get("error", {}).get("code")
    if not isinstance(code, str):
        raise ValueError(f"{body!r:.200} names no error")
    return code
