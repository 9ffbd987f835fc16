"""Handler for custom requests. Runs on the event loop."""

from __future__ import annotations

from model_server.loading.custom import CustomRequest, LoadedCustom
from model_server.serving.admission import Admission
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables

DEFAULT_METHOD = "custom"


class CustomCalls(BatchCalls[LoadedCustom]):
    def __init__(self, servables: Servables, admission: Admission) -> None:
        super().__init__(servables, admission, LoadedCustom)

    async def call(
        self, model_id: str, method: str, request: bytes, cost: BatchCost | None = None
    ) -> bytes:
        """Return the answer, and add its device time to the cost; without a method name, `custom`
        or the model's only method is called.

        Raises the request's own error, InvalidRequest, PermissionDenied, NotLoaded, QueueFull,
        ShuttingDown.
        """
        name = method or self._default_method(model_id)
        with self._request(model_id, name) as servable:
            return await servable.ask(CustomRequest(name, request), cost, queue=name)

    def _default_method(self, model_id: str) -> str:
        self._admission.check_open()
        servable = self._servables.get(model_id)
        own = servable.part(self._kind) is not None and len(servable.methods) == 1
        return next(iter(servable.methods)) if own else DEFAULT_METHOD
