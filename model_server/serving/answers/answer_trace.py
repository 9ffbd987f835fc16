"""AnswerTrace: where one answer's time went, as spans: queue, prefill and its chunks, decode,
detokenise. Pure, but for the tracer that it tells at the end.

The engine measures by `time.monotonic`; `wall_ns` less `now_s`, both of the same moment, brings its
times to those of other processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from model_server.engine.request import PromptChunk
from model_server.serving.answers.request_times import RequestTimes
from sax.tracing import attributes as names
from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import Span, SpanKind, Tracer, Value
from sax.types import GenerateRequest

_MOST_CHUNKS = 64  # spans of one prompt; chunks of longer ones share some


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
        attributes = names.attributes_of(self._request) | dict(told)
        if error:
            attributes[names.ERROR_TYPE] = error
        begun = self._request.answer
        if begun is not None:
            attributes["sax.answer.resumed_tokens"] = len(begun.token_ids)
        before = TraceContext.parse(begun.traceparent) if begun is not None else None
        whole = Span(
            name=f"{attributes[names.OPERATION]} {self._request.model_id}",
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
