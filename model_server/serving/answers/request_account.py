"""How one request fared, as its model's figures, its metrics and its trace are told."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.serving.answers.answer_trace import AnswerTrace
from model_server.serving.answers.request_times import RequestTimes
from model_server.serving.method_stats import MethodStats
from model_server.serving.metrics.request_tally import RequestTally
from model_server.serving.spans import Spans
from sax.errors import Internal, SaxError, wire_name
from sax.tracing import attributes as names
from sax.tracing.tracer import Value
from sax.types import TokenChunk


class RequestAccount:
    def __init__(self, stats: MethodStats, tally: RequestTally, intervals: Spans) -> None:
        """intervals: mean per token after the first, of its model's answers."""
        self.times = RequestTimes(tally, time.monotonic())
        self.trace: AnswerTrace | None = None  # None: nobody traces it
        self.checked = tally.checked  # verdicts of finished answers
        self._stats = stats
        self._tally = tally
        self._intervals = intervals
        stats.begin()

    def told(self, engine_request: EngineRequest) -> EngineRequest:
        """Return the engine's request with what the trace needs."""
        return engine_request if self.trace is None else replace(engine_request, traced=True)

    def submitted(self, engine_request: EngineRequest) -> None:
        self._tally.max_tokens.observe(engine_request.max_tokens)

    def traced(
        self, update: SequenceUpdate, chunk_of: Callable[[SequenceUpdate], TokenChunk]
    ) -> TokenChunk:
        """Return the chunk of an update, and note what making it took."""
        trace = self.trace
        if trace is None:
            return chunk_of(update)
        if update.chunks:
            trace.take(update.chunks)
        began_s = time.thread_time()
        chunk = chunk_of(update)
        trace.detokenise_s += time.thread_time() - began_s
        return replace(chunk, traceparent=str(trace.context)) if chunk.queue_s else chunk

    def succeed(self, chunk: TokenChunk) -> None:
        """Note the whole answer, whose last chunk this is."""
        now, times = time.monotonic(), self.times
        self._stats.succeed(now, now - times.began_s)
        reason = chunk.finish_reason or ""
        times.succeed(now, chunk.prompt_tokens, chunk.completion_tokens, reason)
        if self.trace is not None:
            told: dict[str, Value] = {
                names.INPUT_TOKENS: chunk.prompt_tokens,
                names.OUTPUT_TOKENS: chunk.completion_tokens,
                names.CACHED_TOKENS: chunk.cached_tokens,
                names.FINISH_REASONS: (reason,),
            }
            self.trace.end(times, now, told)
        if (tokens := chunk.completion_tokens) > 1 and times.first_s:
            self._intervals.add((times.last_s - times.first_s) / (tokens - 1))

    def leave(self) -> None:
        """Note that the caller went away."""
        self._stats.leave()
        self._end("cancelled")

    def fail(self, error: BaseException, *, submitted: bool) -> None:
        """Note an end without the whole answer. submitted: the engine had the request."""
        self._stats.fail(time.monotonic())
        refused = isinstance(error, SaxError) and not isinstance(error, Internal)
        failed = wire_name(error) if isinstance(error, SaxError) else type(error).__name__
        self._end("refused" if refused and not submitted else "error", failed)

    def _end(self, reason: str, failed: str = "") -> None:
        self.times.end(reason)
        if self.trace is not None:
            told: dict[str, Value] = {names.FINISH_REASONS: (reason,)}
            self.trace.end(self.times, time.monotonic(), told, failed)
