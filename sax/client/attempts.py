"""Retry budget and history of one request, and the request for the rest of an answer."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from sax.client.losses import ReplicaDied, ReplicaSilent, ReplicaUnreachable
from sax.client.watch import LONGEST_PAUSE_S, pause_s
from sax.errors import (
    DeadlineExceeded,
    NotRetried,
    QueueFull,
    ReplicaLost,
    Retry,
    SaxError,
    Unavailable,
    meaning,
)
from sax.types import AnswerSoFar, GenerateRequest, TokenChunk

_MOST_DEATHS = 2  # of replicas with a request that had had nothing there

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Limits on retrying and waiting before the caller gets an error."""

    attempts: int = 4
    attempts_s: float = 10.0  # no new attempt later than this
    rounds_s: float = 2.5  # nor one at a replica that failed already: a frozen one costs seconds
    ready_s: float = 3.0  # wait for a first ready replica
    holds: bool = True  # wait to the deadline while the admin says a replica is starting
    most_held: int = 256  # requests per model waiting for a replica
    # To go on with an answer that has begun, at other replicas: whoever reads it has more patience.
    # Not many attempts: the request may be what kills them, though it may also have waited in the
    # queues of replicas that died of something else.
    resumed_attempts: int = 16
    resumed_s: float = 60.0
    resumed_pause_s: float = 1.0  # most between rounds: somebody is reading
    # As `rounds_s`, and longer than a connection waits before it tries a server again that is back.
    resumed_rounds_s: float = 4.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Routing options of one caller's requests."""

    address: str = ""  # use only this model server, without asking the admin
    fail_fast: bool = False  # no second attempt


ANY_ROUTE = Route()


def shorter(one_s: float | None, other_s: float | None) -> float | None:
    """Return the shorter of two time limits; None is no limit."""
    return min((each for each in (one_s, other_s) if each is not None), default=None)


class Attempts:
    """The attempts of one request: replicas tried, failures, and time left."""

    def __init__(
        self,
        patience: RetryLimits,
        timeout_s: float | None,
        answer: ResumableAnswer | None = None,
        name: str = "a request",
    ) -> None:
        """answer: goes on from where it was interrupted; None: each attempt begins again. name: of
        the request, for the log."""
        now = asyncio.get_running_loop().time()
        self.tried: set[str] = set()
        self.drawn = random.uniform(0, 100)  # whether a canary serves a request without a session
        self.patience = self._limits = patience
        self._answer = answer
        self._name = name
        self.deaths = 0  # of replicas with this request, which had had no part of its answer there
        self._had = 0  # chunks of it, when it was last interrupted
        self._broken_by: SaxError | None = None  # that first interrupted the answer
        self.failures = 0
        self.last: SaxError | None = None
        self._full: QueueFull | None = None  # what a replica said that has not failed since
        self._full_at = ""  # its address
        self.ends_at = math.inf if timeout_s is None else now + timeout_s
        self._began_at = now
        self._round_at = now  # from when no replica is tried twice for long
        self._asked_at = now  # the replica that is tried now

    @property
    def _spent_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_at

    @property
    def wait_s(self) -> float:
        left_s = self.left_s
        return self.patience.ready_s if left_s is None else min(left_s, self.patience.ready_s)

    @property
    def left_s(self) -> float | None:
        """Seconds to the caller's deadline, or None. Raises DeadlineExceeded when it has passed."""
        if math.isinf(self.ends_at):
            return None
        left = self.ends_at - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before a replica accepted the request")
        return left

    def failed(self, address: str, error: SaxError) -> None:
        """Record a failure that other replicas may not share; raise any other, and the last one."""
        if meaning(error).retry is not Retry.LOCATOR:
            raise error
        if isinstance(error, ReplicaDied):
            self._suspect(address, error)
        if self._answer is not None and self._answer.chunks > self._had:
            self._go_on(self._answer, error)
        self._spare(error)
        self.tried.add(address)
        self.last = error
        if isinstance(error, QueueFull):
            self._full, self._full_at = error, address
        elif address == self._full_at:
            self._full = None
        if not self._patient_with(error):
            self.failures += 1
        spent = self.failures >= self.patience.attempts
        if spent or self._spent_s >= self.patience.attempts_s:
            raise self.told(self._full or error)

    def _suspect(self, address: str, error: ReplicaDied) -> None:
        """Raise NotRetried if the request may be what ends replicas: it waited at two that died, or
        at one where all others had had a token."""
        self.deaths += 1
        begun = self._answer is not None and self._answer.tokens > 0
        if self.deaths < _MOST_DEATHS and (begun or not error.alone):
            return
        logger.error("%s is refused: the server at %s died with it", self._name, address)
        others = "where all other requests had had a token" if error.alone else "and one before it"
        raise NotRetried(
            f"the model server at {address} died while it worked on this request, {others}: it is "
            "not tried at another, because it may be what ends them. If it is not, send it again"
        ) from error

    def _spare(self, error: SaxError) -> None:
        """Leave out the time at a replica that was alive to its end, if the answer has begun: it
        may have waited for a place there. One that took the request in begins a new round: only
        the number of attempts bounds how often it may find one and lose it."""
        now = asyncio.get_running_loop().time()
        if self._broken_by is not None and not isinstance(error, ReplicaSilent):
            there = not isinstance(error, ReplicaUnreachable)
            self._round_at = now if there else self._round_at + now - self._asked_at
            self._began_at += now - self._asked_at
        self._asked_at = now

    def _go_on(self, answer: ResumableAnswer, error: SaxError) -> None:
        """Start anew: a part of the answer arrived before it was interrupted."""
        logger.info("an answer goes on elsewhere after %d tokens: %s", answer.tokens, error)
        limits = self._limits
        self._had = answer.chunks
        self._broken_by = self._broken_by or error
        self.patience = replace(
            limits, attempts=limits.resumed_attempts, attempts_s=limits.resumed_s
        )
        self.failures = 0
        self._full = None
        self.tried.clear()
        self.begin()
        # A replica that stood still cost its reader seconds already: if it is the only one, that
        # was all.
        if self._began_at - answer.heard_at >= limits.rounds_s:
            self._round_at = answer.heard_at
        else:
            self.patience = replace(self.patience, rounds_s=limits.resumed_rounds_s)

    def _patient_with(self, error: SaxError) -> bool:
        """Return True for failures that say nothing against the request once its answer has begun:
        a full queue, where it waits for a place, and a replica that is not back yet."""
        begun = self._broken_by is not None
        return begun and isinstance(error, QueueFull | ReplicaUnreachable)

    def told(self, error: SaxError) -> SaxError:
        """Return the error as the caller sees it: an answer that was interrupted is lost."""
        if self._broken_by is None or not isinstance(error, Unavailable | QueueFull):
            return error
        if error is self._broken_by:
            return ReplicaLost(f"the answer was interrupted: {error.text}")
        return ReplicaLost(
            f"the answer was interrupted ({self._broken_by.text}) and no other replica went on "
            f"with it: {error.text}"
        )

    def begin(self) -> None:
        """Start the time for attempts now, after the request was held for a replica."""
        self._began_at = self._round_at = self._asked_at = asyncio.get_running_loop().time()

    async def again(self) -> None:
        """Pause and start over after every replica was tried. Raises the last failure if their
        queues are full or it is late."""
        waits = self._broken_by is not None and self._full is not None
        if self.last is not None and not waits:
            round_s = asyncio.get_running_loop().time() - self._round_at
            if isinstance(self.last, QueueFull) or round_s >= self.patience.rounds_s:
                raise self.told(self._full or self.last)
        most_s = LONGEST_PAUSE_S if self._broken_by is None else self.patience.resumed_pause_s
        await asyncio.sleep(pause_s(self.failures, most_s))
        self.tried.clear()
        self._asked_at = asyncio.get_running_loop().time()


# Lets requests that were at a replica when it died go on a few at a time.
#
# One of them may be what killed it. The next death then names it, and costs the others nothing.

_ONE_BY_ONE = 3
_MOST = 64  # at once, of one client


class Suspects:
    """The last that came goes on first: what ends a server mostly does so at once. Three go on one
    by one, then more with each that gets an answer; again one by one after a death.

    Use in one event loop.
    """

    def __init__(self) -> None:
        self._proved = 0  # harmless ones in a row
        self._inside = 0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def turn(self, attempts: Attempts) -> AsyncGenerator[Callable[[], None] | None, None]:
        """Wait for a turn, unless no replica died with the request; yield what to call once it has
        had a part of its answer. Raises DeadlineExceeded."""
        if not attempts.deaths:
            yield None
            return
        await self._enter(attempts)
        left = False

        def leave(harmless: bool) -> None:
            nonlocal left
            if not left:
                left = True
                self._leave(harmless)

        try:
            yield lambda: leave(True)
        finally:
            leave(False)

    async def _enter(self, attempts: Attempts) -> None:
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        loop.call_soon(self._let_in)  # after all that end with the same server have come
        try:
            async with asyncio.timeout(attempts.left_s):
                await mine
        except TimeoutError:
            self._give_up(mine)
            assert attempts.left_s is not None, "it raises: the time is over"
        except BaseException:
            self._give_up(mine)
            raise
        attempts.begin()

    def _give_up(self, mine: asyncio.Future[None]) -> None:
        if mine in self._waiting:
            self._waiting.remove(mine)
        elif not mine.cancelled():
            self._leave(harmless=True)

    def _leave(self, harmless: bool) -> None:
        self._inside -= 1
        self._proved = self._proved + 1 if harmless else 0
        self._let_in()
        if not self._inside:
            self._proved = 0

    def _let_in(self) -> None:
        room = min(_MOST, 1 << max(0, self._proved - _ONE_BY_ONE + 1))
        while self._waiting and self._inside < room:
            if not (last := self._waiting.pop()).done():  # else it has just given up
                self._inside += 1
                last.set_result(None)


class ResumableAnswer:
    """Follows one answer as its chunks arrive, and makes the request for the rest if its replica is
    lost. Pure.

    Tokens are chosen by seed and position, so that another replica goes on as the first one would
    have, up to near ties.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.chunks = 0
        self.heard: Callable[[], None] | None = None  # called with each chunk
        self.heard_at = 0.0  # when the last one arrived, in the time of `add`
        self._request = request
        self._ids: list[int] = []
        self._prompt_logprobs = 0
        self._score = 0.0
        self._seed: int | None = None
        self._version = ""
        self._span = ""  # of the part that came last
        if (begun := request.answer) is not None:
            self._ids += begun.token_ids
            self._prompt_logprobs, self._score = begun.prompt_logprobs, begun.score
            self._version, self._span = begun.version, begun.traceparent

    def add(self, chunk: TokenChunk, now: float) -> None:
        """Take in the next chunk. Raises ReplicaLost for one that does not follow: a server older
        than continuations begins the answer again."""
        tokens = len(self._ids) + len(chunk.token_ids)
        if chunk.completion_tokens != tokens:
            raise ReplicaLost(
                f"the replica sent token {chunk.completion_tokens} of the answer instead of token "
                f"{tokens}: it cannot go on with one that was begun elsewhere"
            )
        self.chunks += 1
        if self.heard is not None:
            self.heard()
        self.heard_at = now
        self._ids += chunk.token_ids
        self._score = chunk.score
        if chunk.prompt_logprobs:
            self._prompt_logprobs += len(chunk.prompt_logprobs)
        if chunk.traceparent:
            self._span = chunk.traceparent
        if chunk.seed is not None:
            self._seed, self._version = chunk.seed, chunk.version

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def tokens(self) -> int:
        """Tokens of the answer that arrived."""
        return len(self._ids)

    @property
    def rest(self) -> GenerateRequest:
        """The request for what has not arrived; the caller's own before the first chunk."""
        if not self.chunks:
            return self._request
        sampling = self._request.sampling
        if self._seed is not None:
            sampling = replace(sampling, seed=self._seed)
        answer = AnswerSoFar(
            token_ids=tuple(self._ids),
            score=self._score,
            prompt_logprobs=self._prompt_logprobs,
            version=self._version,
            traceparent=self._span,
        )
        return replace(self._request, sampling=sampling, answer=answer)
