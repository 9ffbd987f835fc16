"""Changes of weights in place: every ready replica of a model is asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from admin_server.cell.modelets import Modelets
from sax.errors import ModelNotReady, SaxError
from sax.types import PublishedModel, ServableStatus
from sax.weights import ReplicaWeights, WeightChange


class WeightsOfReplicas:
    """The weights of one cell's models. Nothing of them is recorded: a replica that starts anew has
    the checkpoint that its model is published with."""

    def __init__(self, find: Callable[[str], PublishedModel], modelets: Modelets) -> None:
        self._find = find
        self._modelets = modelets

    async def change(self, change: WeightChange) -> list[ReplicaWeights]:
        """Ask all ready replicas, and return what each of them has then.

        Raises ModelNotFound, ModelNotReady, and the replicas' error if none of them changed.
        """
        model = self._find(change.model_id)
        ready = [each.address for each in model.replicas if each.status is ServableStatus.LOADED]
        if not ready:
            raise ModelNotReady(
                f"no replica of {change.model_id} is ready, so none has weights to change: "
                f"`sax wait {change.model_id}` says why"
            )
        answers = await asyncio.gather(*(self._one(address, change) for address in ready))
        errors = [each for each in answers if isinstance(each, SaxError)]
        if len(errors) == len(answers):
            raise errors[0]
        return [_told(*each) for each in zip(ready, answers, strict=True)]

    async def _one(self, address: str, change: WeightChange) -> ReplicaWeights | SaxError:
        try:
            return await self._modelets.weights(address, change)
        except SaxError as exc:
            return exc


def _told(address: str, answer: ReplicaWeights | SaxError) -> ReplicaWeights:
    if isinstance(answer, SaxError):
        return ReplicaWeights(address, "", "", answer.text)
    return ReplicaWeights(address, answer.version, answer.state)
