"""Saxml's custom methods: `sax.Model(id).CM().Custom(request, method_name)`."""

from __future__ import annotations

from sax.saxml.model_handle import ModelHandle
from sax.saxml.options import ModelOptions
from sax.status import Status, StatusNotOk


class CustomModel:
    """Custom methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Custom(
        self, request: bytes, method_name: str, options: ModelOptions | None = None
    ) -> bytes:
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        return handle.client.custom(
            handle.model_id, request, method_name, extra, timeout_s, route=handle.route
        )

    def CustomNoException(
        self, request: bytes, method_name: str, options: ModelOptions | None = None
    ) -> bytes | Status:
        """Return the answer, or the status of the error that `Custom` would raise."""
        try:
            return self.Custom(request, method_name, options)
        except StatusNotOk as error:
            return error.status
