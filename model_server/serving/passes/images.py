"""Handler for requests with images. Runs on the event loop."""

from __future__ import annotations

import asyncio

import numpy as np

from model_server.loading.images.decoders import ImageDecoder, image_decoder
from model_server.loading.vision.loaded_vision import LoadedVision, SeenImage
from model_server.serving.admission import Admission, refusal
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from sax.errors import UnsupportedParameter

CLASSIFY, EMBED = "vm.classify", "vm.embed"


class VisionCalls(BatchCalls[LoadedVision]):
    """Each image is decoded in another process, then all share one queue."""

    def __init__(self, servables: Servables, admission: Admission) -> None:
        super().__init__(servables, admission, LoadedVision)

    async def classify(
        self, model_id: str, image: bytes, cost: BatchCost | None = None
    ) -> list[tuple[str, float]]:
        """Return the likeliest labels with their log-probabilities, likeliest first, and add the
        device time to the cost.

        Raises InvalidRequest for a bad image or a model of another kind, PermissionDenied,
        NotLoaded, QueueFull, ShuttingDown, Unavailable.
        """
        with self._request(model_id, CLASSIFY) as servable:
            scores, loaded = (await seen(servable, image, cost)).scores, servable.loaded
            return likeliest(scores, loaded.labels, loaded.top_k)

    async def embed(
        self, model_id: str, image: bytes, cost: BatchCost | None = None
    ) -> list[float]:
        """Return the vector of an image. Raises as `classify`."""
        with self._request(model_id, EMBED) as servable:
            return (await seen(servable, image, cost)).vector.tolist()

    def refuse(self, model_id: str, method: str) -> UnsupportedParameter:
        """Return the error for a method that no model serves. Raises NotLoaded, ShuttingDown."""
        self._admission.check_open()
        return UnsupportedParameter(
            refusal(self._servables.get(model_id), method).text, param="model"
        )


async def seen(
    servable: BatchServable[LoadedVision],
    image: bytes,
    cost: BatchCost | None = None,
    decoder: ImageDecoder | None = None,
) -> SeenImage:
    """Return what the model computes of an encoded image. decoder: None: the process's own.

    Raises InvalidRequest for one that cannot be decoded, QueueFull, NotLoaded, Unavailable.
    """
    decoder = decoder or image_decoder()
    with servable.request():
        pixels = await asyncio.wrap_future(decoder.submit(image, servable.loaded.form))
        return await servable.ask(pixels, cost)


def likeliest(scores: np.ndarray, labels: tuple[str, ...], count: int) -> list[tuple[str, float]]:
    """Return so many labels with their scores, best first; of equal ones in the labels' order."""
    best = np.argsort(-scores, kind="stable")[:count].tolist()
    return [(labels[index], float(scores[index])) for index in best]
