"""One running request: turns engine updates into chunks and records times and outcome.

Works by callback, so a token costs no task. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from msgspec.structs import replace

from model_server.engine.engine import Announce, EngineRequest, SequenceUpdate
from model_server.loading.images.prepared import PreparedImage
from model_server.serving.answers.checked_sink import CheckedAnswer, CheckedSink, Sink
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.serving.answers.request_account import RequestAccount
from model_server.serving.lm_servable import LmServable
from model_server.serving.metrics.registry import ModelServerMetrics
from sax.activity import ServedPhase
from sax.errors import Cancelled, DeadlineExceeded, Internal, SaxError
from sax.types import TokenChunk

logger = logging.getLogger(__name__)
_DOING = {
    "encoding": "its prompt was still being read",
    "queued": "it was still in the queue",
    "prefill": "its {unseen} was still being computed",
}


class RunningRequest:
    """One sequence in progress: receives engine updates, passes chunks to the sink."""

    def __init__(
        self,
        servable: LmServable,
        method: str,
        sink: Sink,
        metrics: ModelServerMetrics,
        on_end: Callable[[], None],
    ) -> None:
        self.servable = servable
        self.request_id = ""  # as the caller named it, for the log
        self.account = RequestAccount(
            servable.methods[method], metrics.tally(servable.model_id), servable
        )
        self.holds: tuple[PreparedImage, ...] = ()  # images that its engine request needs
        self._sink = sink
        self._times = self.account.times
        self._on_end = on_end
        self._answer: Detokenizer | None = None  # None for scored sequences
        self._unseen = "prompt"
        self._sequence: int | None = None
        self._reserved: EngineRequest | None = None  # holds a place in the engine's queue
        self._way: asyncio.Task[None] | None = None  # encoding or remote prefill in progress
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False

    def limit(self, timeout_s: float | None) -> None:
        """End the request with DeadlineExceeded after this time, however far it is by then."""
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(timeout_s, self._expire, timeout_s)

    def expect(self, answer: Detokenizer, unseen: str = "prompt") -> None:
        """unseen: what is computed before there is anything to show."""
        self._answer = answer
        self._unseen = unseen

    def check(self, answer: CheckedAnswer) -> None:
        """Have the finished answer checked before its last chunk is told (see `CheckedSink`)."""
        self._sink = CheckedSink(self._sink, answer, self.account.checked)

    def reserve(self, engine_request: EngineRequest) -> None:
        """Reserve a place in the engine's queue. Raises as the engine does."""
        self.servable.reserve(engine_request)
        self._reserved = engine_request

    def submit(self, engine_request: EngineRequest, announce: Announce | None = None) -> None:
        """Submit the sequence, in its reserved place if it has one. Raises as the engine does."""
        held, self._reserved = self._reserved is not None, None
        asked = self.account.told(engine_request)
        self._sequence = self.servable.submit(asked, self.receive, reserved=held, announce=announce)
        self.account.submitted(engine_request)

    def release(self) -> None:
        """Release the reserved place, if there is one. Idempotent."""
        if self._reserved is not None:
            reserved, self._reserved = self._reserved, None
            self.servable.release(reserved)

    def follow(self, way: asyncio.Task[None]) -> None:
        """Attach the task that leads to the engine, to be cancelled with this request."""
        self._way = way

    @property
    def answer(self) -> Detokenizer:
        """The text that is expected."""
        assert self._answer is not None, "`expect` comes first"
        return self._answer

    @property
    def over(self) -> bool:
        """True once answered, refused or cancelled."""
        return self._over

    @property
    def phase(self) -> ServedPhase:
        if self._times.first_s and self._answer is not None:
            return "decode"
        if self._sequence is None:
            return "prefill" if self._reserved is not None else "encoding"
        return "prefill" if self.servable.has_slot(self._sequence) else "queued"

    def refuse(self, exc: BaseException) -> None:
        """End the request before it began; the caller raises."""
        if self._end():
            if isinstance(exc, asyncio.CancelledError | Cancelled):
                self.account.leave()
            else:
                self.account.fail(exc, submitted=self._sequence is not None)

    def fail(self, error: SaxError) -> None:
        """End the request with an error, which the sink receives."""
        if not self._over:
            self._end()
            self.account.fail(error, submitted=self._sequence is not None)
            self._stop_sequence()
            self._sink(error)

    def cancel(self) -> None:
        """The caller went away: free slot and pages, send nothing more. Idempotent."""
        if self._end():
            self.account.leave()
            if self._way is not None:
                self._way.cancel()
            self._stop_sequence()
            self.servable.cancelled += 1

    def receive(self, update: SequenceUpdate) -> None:
        if self._over:
            return
        try:
            chunk = update.error or self.account.traced(update, self._chunk)
        except Exception:
            logger.exception(
                "an update could not be turned into text%s", of_request(self.request_id)
            )
            chunk = self.internal_error()
        if isinstance(chunk, SaxError):
            self.fail(chunk)
            return
        if chunk.finish_reason is not None:
            self._succeed(update, chunk)
        self._sink(chunk)

    def internal_error(self) -> Internal:
        """Return what a client reads of an error that only the log explains."""
        return Internal(
            f"internal error; the server's log has the details{of_request(self.request_id)}"
        )

    def _chunk(self, update: SequenceUpdate) -> TokenChunk:
        if self._answer is None:
            score = math.fsum(update.result.target_logprobs)
            return TokenChunk("", finish_reason=update.finish, score=score)
        if update.hypotheses:
            self._answer.cached_tokens = update.cached
            self._times.start(update)
            chunk = self._answer.found(update.hypotheses)
            return replace(chunk, queue_s=self._times.queue_s)
        if update.result.token is None:
            return self._answer.push(update.result, update.finish)
        first = not self._times.first_s
        self._times.token(update, time.monotonic())
        if first:
            self.servable.first_tokens.add(self._times.first_s - self._times.began_s)
            self._answer.cached_tokens = update.cached
        chunk = self._answer.push(update.result, update.finish)
        return replace(chunk, queue_s=self._times.queue_s) if first else chunk

    def _succeed(self, update: SequenceUpdate, chunk: TokenChunk) -> None:
        self._end()
        self.account.succeed(chunk)
        if update.finish is None:  # a stop string; the engine would go on
            self._stop_sequence()

    def _expire(self, timeout_s: float) -> None:
        error = DeadlineExceeded(
            f"the time limit of {timeout_s:g} s passed: {self._spent()}", param="timeout"
        )
        if self._way is not None:
            self._way.cancel()
        self.fail(error)

    def _spent(self) -> str:
        """Say how an unfinished request spent its time, and how the next one may end sooner."""
        waited_s = (self._times.first_s or time.monotonic()) - self._times.began_s
        if (phase := self.phase) == "decode":
            return (
                f"the answer began after {waited_s:.1f} s and had {self.answer.tokens} tokens; "
                "allow more time, or fewer tokens (max_tokens)"
            )
        doing = _DOING[phase].format(unseen=self._unseen)
        return f"after {waited_s:.1f} s {doing}; allow more time, or try when fewer requests wait"

    def _stop_sequence(self) -> None:
        if self._sequence is not None:
            self.servable.cancel(self._sequence)

    def _end(self) -> bool:
        """Mark the request as over; return False if it was already."""
        over, self._over = self._over, True
        if not over:
            if self._deadline is not None:
                self._deadline.cancel()
            self._on_end()
        return not over


def of_request(request_id: str) -> str:
    return f" (request {request_id})" if request_id else ""
