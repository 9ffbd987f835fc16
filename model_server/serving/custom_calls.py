"""Handler for custom requests. Runs on the event loop."""

from __future__ import annotations

from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.custom_servable import CustomServable
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from sax.auth.acl import caller

DEFAULT_METHOD = "custom"


class CustomCalls:
    def __init__(self, servables: Servables, admission: Admission) -> None:
        self._servables = servables
        self._admission = admission

    async def call(
        self, model_id: str, method: str, request: bytes, cost: BatchCost | None = None
    ) -> bytes:
        """Return the answer, and add its device time to the cost; without a method name, `custom`
        or the model's only method is called.

        Raises the request's own error, InvalidRequest, PermissionDenied, NotLoaded, QueueFull,
        ShuttingDown.
        """
        self._admission.check_open()
        servable = self._servables.get(model_id)
        if not isinstance(servable, CustomServable):
            raise refusal(servable, method or DEFAULT_METHOD)
        name = method or _default_method(servable)
        if name not in servable.methods:
            raise refusal(servable, name)
        check_method(caller(), model_id, name, self._servables.acls(model_id))
        with self._admission.request(servable, name):
            return await servable.ask(name, request, cost)


def _default_method(servable: CustomServable) -> str:
    return DEFAULT_METHOD if len(servable.methods) > 1 else next(iter(servable.methods))
