"""Calls of models that answer in batches: found by their kind, admitted, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from model_server.loading.loaded_batches import LoadedBatches
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.batch_servable import BatchServable
from model_server.serving.servable import Servable
from model_server.serving.servables import Servables
from sax.auth.acl import caller

L = TypeVar("L", bound=LoadedBatches)


class BatchCalls(Generic[L]):
    """Runs on the event loop."""

    def __init__(self, servables: Servables, admission: Admission, kind: type[L]) -> None:
        """kind: of the models that serve these calls."""
        self._servables = servables
        self._admission = admission
        self._kind = kind

    def _part(self, model_id: str, method: str) -> tuple[Servable, BatchServable[L]]:
        """Return a model, and the part of it that serves the method.

        Raises NotLoaded, ShuttingDown, and InvalidRequest for a model that does not serve it.
        """
        self._admission.check_open()
        servable = self._servables.get(model_id)
        part = servable.part(self._kind)
        if part is None or method not in servable.methods:
            raise refusal(servable, method)
        return servable, part

    @contextmanager
    def _request(self, model_id: str, method: str) -> Iterator[BatchServable[L]]:
        """Count one request of the method. Raises as `_part`, and PermissionDenied."""
        servable, part = self._part(model_id, method)
        check_method(caller(), model_id, method, self._servables.acls(model_id))
        with self._admission.request(servable, method):
            yield part
