"""Handler for requests with images. Runs on the event loop."""

from __future__ import annotations

import numpy as np

from model_server.loading.loaded import SeenImage
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.serving.vision_servable import VisionServable
from sax.auth.acl import caller
from sax.errors import UnsupportedParameter

CLASSIFY, EMBED = "vm.classify", "vm.embed"


class VisionCalls:
    def __init__(self, servables: Servables, admission: Admission) -> None:
        self._servables = servables
        self._admission = admission

    async def classify(
        self, model_id: str, image: bytes, cost: BatchCost | None = None
    ) -> list[tuple[str, float]]:
        """Return the likeliest labels with their log-probabilities, likeliest first, and add the
        device time to the cost.

        Raises InvalidRequest for a bad image or a model of another kind, PermissionDenied,
        NotLoaded, QueueFull, ShuttingDown, Unavailable.
        """
        servable, seen = await self._see(model_id, CLASSIFY, image, cost)
        return likeliest(seen.scores, servable.loaded.labels, servable.loaded.top_k)

    async def embed(
        self, model_id: str, image: bytes, cost: BatchCost | None = None
    ) -> list[float]:
        """Return the vector of an image. Raises as `classify`."""
        _, seen = await self._see(model_id, EMBED, image, cost)
        return seen.vector.tolist()

    def refuse(self, model_id: str, method: str) -> UnsupportedParameter:
        """Return the error for a method that no model serves. Raises NotLoaded, ShuttingDown."""
        self._admission.check_open()
        return UnsupportedParameter(
            refusal(self._servables.get(model_id), method).text, param="model"
        )

    async def _see(
        self, model_id: str, method: str, image: bytes, cost: BatchCost | None
    ) -> tuple[VisionServable, SeenImage]:
        self._admission.check_open()
        servable = self._servables.get(model_id)
        if not isinstance(servable, VisionServable):
            raise refusal(servable, method)
        check_method(caller(), model_id, method, self._servables.acls(model_id))
        with self._admission.request(servable, method):
            return servable, await servable.see(image, cost)


def likeliest(scores: np.ndarray, labels: tuple[str, ...], count: int) -> list[tuple[str, float]]:
    """Return so many labels with their scores, best first; of equal ones in the labels' order."""
    best = np.argsort(-scores, kind="stable")[:count].tolist()
    return [(labels[index], float(scores[index])) for index in best]
