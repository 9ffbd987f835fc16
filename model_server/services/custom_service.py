"""Saxml's CustomService: decodes a request, calls the handler, encodes the answer."""

from __future__ import annotations

from typing import Any

from model_server.services.cost_trailer import tell_cost
from model_server.serving.custom_calls import CustomCalls
from model_server.serving.query_cost import BatchCost
from sax.proto import custom_pb2, custom_pb2_grpc
from sax.wire.extra_inputs import refuse_extra_inputs
from sax.wire.request_bounds import check_custom


class CustomService(custom_pb2_grpc.CustomServiceServicer):
    def __init__(self, calls: CustomCalls) -> None:
        self._calls = calls

    async def Custom(self, request: Any, context: Any) -> custom_pb2.CustomResponse:
        check_custom(request)
        refuse_extra_inputs(request.extra_inputs, "Custom")
        cost = BatchCost()
        answer = await self._calls.call(
            request.model_key, request.method_name, request.request, cost
        )
        tell_cost(context, cost.milliseconds)
        return custom_pb2.CustomResponse(response=answer)
