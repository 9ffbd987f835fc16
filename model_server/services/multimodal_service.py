"""Saxml's MultimodalService: texts and images as a user's message, and the answers to it."""

from __future__ import annotations

import contextlib
from typing import Any

from model_server.services.account import account_of_call, time_left_s, traceparent_of_call
from model_server.services.cost_trailer import tell_cost
from model_server.services.lm_service import Samples, sampled
from model_server.serving.chats.items import message_of, text_of
from model_server.serving.handler import MM_GENERATE, MM_SCORE, Handler
from model_server.serving.passes.images import VisionCalls
from sax.proto import multimodal_pb2, multimodal_pb2_grpc
from sax.types import GenerateRequest
from sax.wire.extra_inputs import (
    refuse_extra_inputs,
    sample_temperatures,
    sampling_from_extra_inputs,
)
from sax.wire.request_bounds import check_items, check_model_key


class MultimodalService(multimodal_pb2_grpc.MultimodalServiceServicer):
    def __init__(self, handler: Handler, calls: VisionCalls) -> None:
        self._handler = handler
        self._calls = calls

    async def Generate(self, request: Any, context: Any) -> multimodal_pb2.GenerateRpcResponse:
        """Return all samples whole, best first."""
        self._check(request, MM_GENERATE)
        meter = self._handler.cost_meter(request.model_key, MM_GENERATE)
        defaults, count = self._handler.defaults(request.model_key)
        sampling = sampling_from_extra_inputs(request.extra_inputs, defaults)
        beams = sampling.beam_size
        starts = 1 if beams else count
        temperatures = sample_temperatures(request.extra_inputs, starts)
        question = GenerateRequest(
            model_id=request.model_key,
            prompt=message_of(request.request.items, "items"),
            sampling=sampling,
            account=account_of_call(context),
            timeout_s=time_left_s(context),
            traceparent=traceparent_of_call(context),
        )
        samples = Samples(
            beams or count,
            as_ids=self._handler.answers_ids(request.model_key),
            replies=self._handler.replies(request.model_key),
        )
        work = sampled(self._handler, question, samples, MM_GENERATE, starts, temperatures)
        async with contextlib.aclosing(work) as stream:
            async for _ in stream:
                pass
        tell_cost(context, meter.milliseconds(samples.computed))
        results = [
            multimodal_pb2.GenerateResult(
                items=[multimodal_pb2.DataItem(text=sample.text + sample.piece)],
                score=sample.score,
            )
            for sample in samples.ordered()
        ]
        made = multimodal_pb2.GenerateResponse(results=results)
        return multimodal_pb2.GenerateRpcResponse(response=made)

    async def Score(self, request: Any, context: Any) -> multimodal_pb2.ScoreRpcResponse:
        """Return the log-probability of the suffix's text as the answer to the prefix."""
        self._check(request, MM_SCORE)
        refuse_extra_inputs(request.extra_inputs, "Score")
        meter = self._handler.cost_meter(request.model_key, MM_SCORE)
        scores = await self._handler.score(
            request.model_key,
            message_of(request.request.prefix_items, "prefix_items"),
            [text_of(request.request.suffix_items, "suffix_items")],
            account_of_call(context),
            time_left_s(context),
            method=MM_SCORE,
        )
        tell_cost(context, meter.milliseconds(scores.tokens))
        results = [multimodal_pb2.ScoreResult(score=score) for score in scores.logprobs]
        made = multimodal_pb2.ScoreResponse(results=results)
        return multimodal_pb2.ScoreRpcResponse(response=made)

    async def Embed(self, request: Any, context: Any) -> Any:
        """Refuse: no model here makes one vector of texts and images."""
        check_model_key(request)
        raise self._calls.refuse(request.model_key, "mm.embed")

    def _check(self, request: Any, method: str) -> None:
        """Raise InvalidRequest for what is too large, or a model that does not serve the method."""
        check_items(request)
        if not self._handler.serves(request.model_key, method):
            raise self._calls.refuse(request.model_key, method)
