"""Saxml's multimodal methods, on its own messages (`sax.proto.multimodal_pb2`).

Models that take images generate and score; Embed is refused with UnsupportedParameter.
"""

from __future__ import annotations

from sax.proto import multimodal_pb2
from sax.saxml.model_handle import ModelHandle
from sax.saxml.options import ModelOptions
from sax.wire import services


class MultimodalModel:
    """Multimodal methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Generate(
        self, request: multimodal_pb2.GenerateRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.GenerateResponse:
        wrapped = multimodal_pb2.GenerateRpcRequest(request=request)
        return self._handle.ask(services.MM_GENERATE, wrapped, options).response

    def Score(
        self, request: multimodal_pb2.ScoreRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.ScoreResponse:
        wrapped = multimodal_pb2.ScoreRpcRequest(request=request)
        return self._handle.ask(services.MM_SCORE, wrapped, options).response

    def Embed(
        self, request: multimodal_pb2.EmbedRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.EmbedResponse:
        wrapped = multimodal_pb2.EmbedRpcRequest(request=request)
        return self._handle.ask(services.MM_EMBED, wrapped, options).response
