"""Account of one request: its times, for its model's figures, metrics and trace.

The trace says where an answer's time went, as spans: queue, prefill and its chunks, decode,
detokenise. The engine measures by `time.monotonic`; `wall_ns` less `now_s`, both of the same
moment, brings its times to those of other processes. Pure, but for the tracer that it tells at the
end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.parts.routed_experts import ShowRoutes, ToldRoutes
from model_server.engine.request import PromptChunk
from model_server.serving.lm_servable import LmServable
from model_server.serving.method_stats import MethodStats
from model_server.serving.metrics.request_tally import RequestTally
from sax import tracing
from sax.errors import Internal, SaxError, wire_name
from sax.tracing import Span, SpanKind, TraceContext, Tracer, Value
from sax.types import GenerateRequest, TokenChunk
from sax.weights import PUBLISHED, WeightRun, add_run, runs_of

_MOST_CHUNKS = 64  # spans of one prompt; chunks of longer ones share some


class RequestTimes:
    """Times of one request, which it tells its model's tally."""

    __slots__ = ("_interval", "_tally", "began_s", "first_s", "last_s", "started_s", "tokens")

    def __init__(self, tally: RequestTally, began_s: float) -> None:
        self._tally = tally
        self._interval = tally.interval
        self.began_s = began_s
        self.started_s = 0.0  # when it first took a slot here; 0: not yet
        self.first_s = 0.0  # when its first token was read; 0: not yet
        self.last_s = 0.0  # when its last one was, so far
        self.tokens = 0  # that were computed here

    @property
    def queue_s(self) -> float:
        """From its arrival to its first slot; 0.0 until it has one."""
        return max(self.started_s - self.began_s, 0.0) if self.started_s else 0.0

    def start(self, update: SequenceUpdate) -> None:
        """Note from the first update with a result when the request took a slot."""
        if not self.started_s and update.started_s:
            self.started_s = update.started_s
            self._tally.queue.observe(self.queue_s)

    def token(self, update: SequenceUpdate, now_s: float) -> None:
        """Note a token. Tokens of one step come at the same time, so no time is between them."""
        self.tokens += 1
        at_s = update.read_s or now_s
        if self.last_s:
            self._interval.observe(at_s - self.last_s)
        else:
            self._begin(update, at_s, now_s)
        self.last_s = at_s

    def _begin(self, update: SequenceUpdate, at_s: float, now_s: float) -> None:
        self.first_s = at_s
        self.start(update)
        self._tally.first_token.observe(now_s - self.began_s)
        if self.started_s:
            self._tally.prefill.observe(at_s - self.started_s)

    def succeed(self, now_s: float, prompt_tokens: int, answer_tokens: int, reason: str) -> None:
        """Note that the request has its whole answer."""
        tally = self._tally
        tally.ended[reason] += 1
        tally.whole.observe(now_s - self.began_s)
        if prompt_tokens:  # a score tells of none
            tally.prompt_tokens.observe(prompt_tokens)
            tally.answer_tokens.observe(answer_tokens)
        if not self.first_s:
            return
        tally.decode.observe(self.last_s - self.first_s)
        if self.started_s:
            tally.computing.observe(self.last_s - self.started_s)
        if self.tokens > 1:
            tally.per_token.observe((self.last_s - self.first_s) / (self.tokens - 1))

    def end(self, reason: str) -> None:
        """Note that the request ended without its whole answer: cancelled, error or refused."""
        self._tally.ended[reason] += 1


class AnswerTrace:
    """Collects what a traced request's updates tell, and records its spans when it is over."""

    __slots__ = ("_chunks", "_parent", "_request", "_tracer", "_zero_ns", "context", "detokenise_s")

    def __init__(
        self,
        tracer: Tracer,
        context: TraceContext,
        parent: TraceContext | None,
        request: GenerateRequest,
        now: tuple[int, float],
    ) -> None:
        """now: nanoseconds since 1970, and seconds of `time.monotonic`."""
        wall_ns, now_s = now
        self._tracer = tracer
        self._parent = parent
        self._request = request
        self._zero_ns = wall_ns - round(now_s * 1e9)
        self._chunks: list[PromptChunk] = []
        self.context = context
        self.detokenise_s = 0.0  # of the processor, so far

    def take(self, chunks: Sequence[PromptChunk]) -> None:
        self._chunks += chunks

    def end(
        self, times: RequestTimes, now_s: float, told: Mapping[str, Value], error: str = ""
    ) -> None:
        """Record the answer's span and those below it.

        told: what the end of the answer says of it. error: what it failed with; "": it did not.
        """
        attributes = tracing.attributes_of(self._request) | dict(told)
        if error:
            attributes[tracing.ERROR_TYPE] = error
        begun = self._request.answer
        if begun is not None:
            attributes["sax.answer.resumed_tokens"] = len(begun.token_ids)
        before = TraceContext.parse(begun.traceparent) if begun is not None else None
        whole = Span(
            name=f"{attributes[tracing.OPERATION]} {self._request.model_id}",
            context=self.context,
            parent=self._parent,
            remote_parent=True,
            kind=SpanKind.SERVER,
            began_ns=self._ns(times.began_s),
            ended_ns=self._ns(now_s),
            attributes=attributes,
            links=() if before is None else (before,),
            error=error,
        )
        self._tracer.record([*self._parts(times, now_s), whole])

    def _parts(self, times: RequestTimes, now_s: float) -> Iterator[Span]:
        """Yield the phases that the request came to, whatever ended it."""
        yield self._part("queue", times.began_s, times.started_s or times.first_s or now_s)
        if times.started_s:
            prefill = self._part("prefill", times.started_s, times.first_s or now_s)
            yield prefill
            yield from self._of_prompt(prefill.context)
        if times.first_s:
            yield self._part("decode", times.first_s, times.last_s)
            told = {"sax.detokenise.cpu_seconds": self.detokenise_s}
            yield self._part("detokenise", times.first_s, now_s, told)

    def _of_prompt(self, prefill: TraceContext) -> Iterator[Span]:
        together = -(-len(self._chunks) // _MOST_CHUNKS) or 1
        for first in range(0, len(self._chunks), together):
            chunks = self._chunks[first : first + together]
            told: dict[str, Value] = {
                "sax.prefill.first_position": chunks[0].start,
                "sax.prefill.tokens": sum(chunk.tokens for chunk in chunks),
                "sax.prefill.steps": len(chunks),
            }
            began_s, ended_s = chunks[0].began_s, chunks[-1].ended_s
            yield self._part("prefill chunk", began_s, ended_s, told, prefill)

    def _part(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        told: Mapping[str, Value] | None = None,
        parent: TraceContext | None = None,
    ) -> Span:
        parent = parent or self.context
        return Span(
            name=name,
            context=parent.child(),
            parent=parent,
            began_ns=self._ns(began_s),
            ended_ns=self._ns(max(began_s, ended_s)),
            attributes=told or {},
        )

    def _ns(self, at_s: float) -> int:
        return self._zero_ns + round(at_s * 1e9)


class RequestAccount:
    def __init__(self, stats: MethodStats, tally: RequestTally, servable: LmServable) -> None:
        self.times = RequestTimes(tally, time.monotonic())
        self.trace: AnswerTrace | None = None  # None: nobody traces it
        self.checked = tally.checked  # verdicts of finished answers
        self._stats = stats
        self._tally = tally
        self._intervals = servable.token_intervals
        self._weights = servable.weights
        self._runs: list[WeightRun] = []  # of all tokens of the answer so far
        self._routes: ToldRoutes | None = None  # None: nobody asked for them
        stats.begin()

    def told(self, engine_request: EngineRequest) -> EngineRequest:
        """Return the engine's request with what the trace needs."""
        if engine_request.answer:
            self._runs = [WeightRun("", len(engine_request.answer))]
        if engine_request.setting(ShowRoutes) is not None:
            self._routes = ToldRoutes()
        return engine_request if self.trace is None else replace(engine_request, traced=True)

    def submitted(self, engine_request: EngineRequest) -> None:
        self._tally.max_tokens.observe(engine_request.max_tokens)

    def traced(
        self, update: SequenceUpdate, chunk_of: Callable[[SequenceUpdate], TokenChunk]
    ) -> TokenChunk:
        """Return the chunk of an update, and note what making it took, and what computed it."""
        if update.result.token is not None or update.hypotheses:
            add_run(self._runs, self._weights.version or PUBLISHED)
        if self._routes is not None:
            self._routes.add(update.routes)
        chunk = self._traced(update, chunk_of)
        if chunk.finish_reason and self._weights.version:
            chunk = replace(chunk, weights=runs_of(self._runs, chunk.completion_tokens))
        if chunk.finish_reason and self._routes is not None:
            computed = chunk.prompt_tokens + chunk.completion_tokens - 1
            chunk = replace(chunk, routed_experts=self._routes.encoded(computed))
        return chunk

    def _traced(
        self, update: SequenceUpdate, chunk_of: Callable[[SequenceUpdate], TokenChunk]
    ) -> TokenChunk:
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
                tracing.INPUT_TOKENS: chunk.prompt_tokens,
                tracing.OUTPUT_TOKENS: chunk.completion_tokens,
                tracing.CACHED_TOKENS: chunk.cached_tokens,
                tracing.FINISH_REASONS: (reason,),
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
            told: dict[str, Value] = {tracing.FINISH_REASONS: (reason,)}
            self.trace.end(self.times, time.monotonic(), told, failed)
