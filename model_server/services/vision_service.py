"""Saxml's VisionService: decodes a request, calls the handler, encodes the answer. Methods that no
model here serves are refused with those that the model does.
"""

from __future__ import annotations

from typing import Any

from model_server.services.cost_trailer import tell_cost
from model_server.serving.passes.images import VisionCalls
from model_server.serving.query_cost import BatchCost
from sax.proto import vision_pb2, vision_pb2_grpc
from sax.wire.extra_inputs import refuse_extra_inputs
from sax.wire.request_bounds import check_image, check_model_key


class VisionService(vision_pb2_grpc.VisionServiceServicer):
    def __init__(self, calls: VisionCalls) -> None:
        self._calls = calls

    async def Classify(self, request: Any, context: Any) -> vision_pb2.ClassifyResponse:
        check_image(request)
        refuse_extra_inputs(request.extra_inputs, "Classify")
        cost = BatchCost()
        found = await self._calls.classify(request.model_key, request.image_bytes, cost)
        tell_cost(context, cost.milliseconds)
        texts = [vision_pb2.DecodedText(text=label, score=score) for label, score in found]
        return vision_pb2.ClassifyResponse(texts=texts)

    async def Embed(self, request: Any, context: Any) -> vision_pb2.EmbedResponse:
        check_image(request)
        refuse_extra_inputs(request.extra_inputs, "Embed")
        cost = BatchCost()
        vector = await self._calls.embed(request.model_key, request.image_bytes, cost)
        tell_cost(context, cost.milliseconds)
        return vision_pb2.EmbedResponse(embedding=vector)

    async def TextToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.generate")

    async def TextAndImageToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.text_and_image_to_image")

    async def Detect(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.detect")

    async def ImageToText(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.image_to_text")

    async def ImageToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.image_to_image")

    async def VideoToText(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.video_to_text")

    async def VideoToToken(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.video_to_token")

    async def TokenToVideo(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.token_to_video")

    def _refused(self, request: Any, method: str) -> Exception:
        check_model_key(request)
        return self._calls.refuse(request.model_key, method)
