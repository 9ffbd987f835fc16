"""Saxml's LMService: decodes a request, calls the handler, encodes the answer."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model_server.models.saxml_replies import PLAIN_REPLIES, SaxmlReplies
from model_server.services.call import account_of_call, tell_cost, time_left_s, traceparent_of_call
from model_server.services.token_stream import Delivery, TokenStream
from model_server.serving.handler import GENERATE, GENERATE_STREAM, SCORE, Handler
from model_server.serving.passes.embeddings import Embeddings
from model_server.serving.passes.gradients import GradientCalls
from model_server.serving.query_cost import BatchCost
from model_server.text.id_list import join_ids
from sax.errors import SaxError
from sax.proto import lm_pb2, lm_pb2_grpc
from sax.types import GenerateRequest, TokenChunk
from sax.wire.embed import encode_gradients
from sax.wire.extra_inputs import (
    refuse_extra_inputs,
    sample_temperatures,
    sampling_from_extra_inputs,
)
from sax.wire.request_bounds import check_gradient, check_question, check_score


@dataclass(slots=True)
class Sample:
    text: str = ""
    piece: str = ""  # text from the last `add`
    score: float = 0.0
    tokens: int = 0
    computed: int = 0  # tokens, those of the prompt included
    over: bool = False

    def note(self, chunk: TokenChunk) -> None:
        """Note how far it is, and what it took."""
        self.computed = chunk.prompt_tokens - chunk.cached_tokens + chunk.completion_tokens
        self.over = chunk.finish_reason is not None


def start_samples(
    connection: TokenStream,
    request: GenerateRequest,
    count: int,
    temperatures: Sequence[float] = (),
) -> None:
    """Start `count` requests for one prompt, each with its own seed, and temperature if given."""
    own = temperatures or [request.sampling.temperature] * count
    seeds = sample_seeds(request.sampling.seed, count)
    for index, (seed, temperature) in enumerate(zip(seeds, own, strict=True)):
        sampling = replace(request.sampling, seed=seed, temperature=temperature)
        connection.start(index, replace(request, sampling=sampling))
    connection.end()


class Samples:
    def __init__(
        self,
        count: int,
        *,
        as_ids: bool = False,
        begin: str = "",
        replies: SaxmlReplies = PLAIN_REPLIES,
    ) -> None:
        """as_ids: texts are lists of token ids instead. begin: of every answer."""
        self.all = [Sample() for _ in range(count)]
        self.prompt_tokens = 0
        self._as_ids = as_ids
        self._begin = begin
        self._replies = replies

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Add new deliveries. Raises the first error: one failed sample fails the request."""
        for sample in self.all:
            sample.text += sample.piece
            sample.piece = self._begin
        self._begin = ""
        for delivery in deliveries:
            if isinstance(delivery.chunk, SaxError):
                raise delivery.chunk
            self.prompt_tokens = delivery.chunk.prompt_tokens or self.prompt_tokens
            if delivery.chunk.hypotheses:
                self._take(delivery.chunk)
                continue
            sample = self.all[delivery.id]
            sample.piece += self._text(sample, delivery.chunk.text, delivery.chunk.token_ids)
            sample.tokens = delivery.chunk.completion_tokens
            sample.score = self._replies.sampled(delivery.chunk.score, sample.tokens)
            sample.note(delivery.chunk)

    def _take(self, found: TokenChunk) -> None:
        """Take the answers of a beam search, which come all at once."""
        for sample, each in zip(self.all, found.hypotheses, strict=False):
            sample.piece += self._text(sample, each.text, each.token_ids)
            sample.score = each.score
            sample.tokens = len(each.token_ids)
            sample.over = True
        del self.all[len(found.hypotheses) :]
        self.all[0].computed = found.prompt_tokens + sum(sample.tokens for sample in self.all)

    def _text(self, sample: Sample, text: str, token_ids: Sequence[int]) -> str:
        if not self._as_ids:
            return text
        goes_on = token_ids and (sample.text or sample.piece)
        return ("," if goes_on else "") + join_ids(token_ids)

    @property
    def over(self) -> bool:
        return all(sample.over for sample in self.all)

    @property
    def computed(self) -> int:
        """Tokens that were computed for all samples."""
        return sum(sample.computed for sample in self.all)

    def ordered(self) -> list[Sample]:
        """Sort by score, unless the model says otherwise; on a tie the first one drawn leads."""
        if not self._replies.best_first:
            return self.all
        return sorted(self.all, key=lambda sample: -sample.score)


class LmService(lm_pb2_grpc.LMServiceServicer):
    def __init__(self, handler: Handler, embeddings: Embeddings, gradients: GradientCalls) -> None:
        self._handler = handler
        self._gradients = gradients
        self._embeddings = embeddings

    async def Generate(self, request: Any, context: Any) -> lm_pb2.GenerateResponse:
        """Return all samples whole, best first."""
        check_question(request)
        meter = self._handler.cost_meter(request.model_key, GENERATE)
        async with contextlib.aclosing(self._sample(request, GENERATE, context)) as stream:
            async for samples in stream:
                last = samples
        tell_cost(context, meter.milliseconds(last.computed))
        texts = [
            lm_pb2.DecodedText(text=sample.text + sample.piece, score=sample.score)
            for sample in last.ordered()
        ]
        return lm_pb2.GenerateResponse(
            texts=texts,
            prompt_tokens=last.prompt_tokens,
            completion_tokens=sum(sample.tokens for sample in last.all),
        )

    async def GenerateStream(
        self, request: Any, context: Any
    ) -> AsyncGenerator[lm_pb2.GenerateStreamResponse]:
        """Stream text as it comes: the client keeps prefix_len characters and appends `text`."""
        check_question(request)
        meter = self._handler.cost_meter(request.model_key, GENERATE_STREAM)
        async with contextlib.aclosing(self._sample(request, GENERATE_STREAM, context)) as stream:
            async for samples in stream:
                items = [_stream_item(sample) for sample in samples.all]
                if samples.over:
                    tell_cost(context, meter.milliseconds(samples.computed))
                yield lm_pb2.GenerateStreamResponse(items=items)

    async def Score(self, request: Any, context: Any) -> lm_pb2.ScoreResponse:
        check_score(request)
        refuse_extra_inputs(request.extra_inputs, "Score")
        meter = self._handler.cost_meter(request.model_key, SCORE)
        scores = await self._handler.score(
            request.model_key,
            request.prefix,
            request.suffix,
            account_of_call(context),
            time_left_s(context),
        )
        tell_cost(context, meter.milliseconds(scores.tokens))
        return lm_pb2.ScoreResponse(logp=scores.logprobs)

    async def Embed(self, request: Any, context: Any) -> lm_pb2.EmbedResponse:
        check_question(request)
        refuse_extra_inputs(request.extra_inputs, "Embed")
        cost = BatchCost()
        embedded = await self._embeddings.embed(request.model_key, [request.text], cost=cost)
        tell_cost(context, cost.milliseconds)
        return lm_pb2.EmbedResponse(embedding=embedded.vectors[0])

    async def Gradient(self, request: Any, context: Any) -> lm_pb2.GradientResponse:
        check_gradient(request)
        refuse_extra_inputs(request.extra_inputs, "Gradient")
        cost = BatchCost()
        found = await self._gradients.gradient(
            request.model_key, request.prefix, request.suffix, cost
        )
        tell_cost(context, cost.milliseconds)
        return encode_gradients(found)

    async def _sample(self, request: Any, method: str, context: Any) -> AsyncGenerator[Samples]:
        """Yield the samples as they grow: the same object after every step that added to it."""
        defaults, count = self._handler.defaults(request.model_key)
        sampling = sampling_from_extra_inputs(request.extra_inputs, defaults)
        prompt = self._handler.query(request.model_key, request.text)
        question = GenerateRequest(
            model_id=request.model_key,
            prompt=prompt,
            sampling=sampling,
            account=account_of_call(context),
            timeout_s=time_left_s(context),
            traceparent=traceparent_of_call(context),
        )
        beams = sampling.beam_size
        temperatures = sample_temperatures(request.extra_inputs, 1 if beams else count)
        samples = Samples(
            beams or count,
            as_ids=self._handler.answers_ids(request.model_key),
            begin=await self._handler.query_begin(request.model_key, request.text, prompt),
            replies=self._handler.replies(request.model_key),
        )
        starts = 1 if beams else count
        work = sampled(self._handler, question, samples, method, starts, temperatures)
        async with contextlib.aclosing(work) as stream:
            async for grown in stream:
                yield grown


async def sampled(
    handler: Handler,
    question: GenerateRequest,
    samples: Samples,
    method: str,
    starts: int,
    temperatures: Sequence[float],
) -> AsyncGenerator[Samples]:
    """Start so many requests and yield their samples as they grow: the same object after every step
    that added to it."""
    connection = TokenStream(handler, method)
    try:
        start_samples(connection, handler.seeded(question), starts, temperatures)
        while deliveries := await connection.take():
            samples.add(deliveries)
            yield samples
    finally:
        connection.close()


def _stream_item(sample: Sample) -> lm_pb2.GenerateStreamItem:
    return lm_pb2.GenerateStreamItem(
        text=sample.piece,
        prefix_len=len(sample.text),
        score=sample.score,
        scores=[sample.score],
    )


_SEEDS = 2**64
_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so every sample of a request gets another seed


def sample_seeds(seed: int | None, count: int) -> list[int]:
    """Return a seed for each sample of a request; the first is the caller's own."""
    first = secrets.randbits(64) if seed is None else seed
    return [(first + index * _SEED_STRIDE) % _SEEDS for index in range(count)]
